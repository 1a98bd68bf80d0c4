"""The decoders that can be served: Llama, Mistral, Qwen3."""
