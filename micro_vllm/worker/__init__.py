"""Owns the device: the model, the physical KV cache, and the flattened batch of a step."""
