"""What the page may be told from outside: command line, environment, container. Read once, then frozen.

``MICRO_VLLM_CACHE`` is not here: the model loader reads it, also for those who use the engine without the page.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
HOME_BLOCKS = 256
BLOCK_SIZE = 16
_MIB = 1024 * 1024
HOME_POOL_BYTES = 512 * _MIB
DEFAULT_PORT = 7860
_YES = {"1", "true", "yes", "on"}
_NO = {"", "0", "false", "no", "off"}


@dataclass(frozen=True, slots=True)
class Limits:
    """What one visitor of a shared server may ask for. None: as much as the engine holds."""

    max_prompt_tokens: int | None = None
    max_answer_tokens: int | None = None
    max_requests_per_visitor: int | None = None
    """At the same time."""
    max_waiting: int | None = None
    """Requests in the engine's queue; beyond it new ones are turned away."""

    def words(self) -> str:
        """For the page, before anybody runs into them; "" where there are none."""
        if self.max_prompt_tokens is None:
            return ""
        return (
            f"Shared server: a chat may hold up to {self.max_prompt_tokens:,} tokens, an answer up to "
            f"{self.max_answer_tokens:,}; {self.max_requests_per_visitor} answers at a time for each visitor, "
            f"{self.max_waiting} waiting in all."
        )


HOSTED_LIMITS = Limits(
    max_prompt_tokens=1536, max_answer_tokens=512, max_requests_per_visitor=2, max_waiting=24
)


@dataclass(frozen=True, slots=True)
class Settings:
    """One start of the page."""

    model: str = DEFAULT_MODEL
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    is_hosted: bool = False
    num_blocks: int | None = HOME_BLOCKS
    """KV blocks; None sizes the pool by ``kv_cache_memory_bytes``."""
    kv_cache_memory_bytes: int = HOME_POOL_BYTES
    block_size: int = BLOCK_SIZE
    limits: Limits = Limits()


def read_settings(
    argv: Sequence[str], environ: Mapping[str, str], memory_limit: int | None = None
) -> Settings:
    """The command line wins over the environment, the environment over the defaults.

    ``memory_limit`` is the container's, in bytes; it sizes the pool of a hosted page. Exits like argparse on
    wrong arguments.
    """
    parser = argparse.ArgumentParser(
        prog="app.py", description="Chat with a small language model and watch the engine that serves you."
    )
    parser.add_argument("--model", help="catalogue name, Hub id or local folder")
    parser.add_argument("--host", help="address to listen on")
    parser.add_argument("--port", type=int, help="port to listen on (7860)")
    args = parser.parse_args(argv)

    in_space = bool(environ.get("SPACE_ID"))
    is_hosted = _flag(parser, "MICRO_VLLM_HOSTED", environ.get("MICRO_VLLM_HOSTED"), in_space)
    port = args.port if args.port is not None else _port(parser, environ.get("GRADIO_SERVER_PORT"))
    if not 0 < port < 65536:
        parser.error(f"port {port} is out of range; allowed: 1 to 65535.")
    return Settings(
        model=args.model or environ.get("MICRO_VLLM_MODEL") or DEFAULT_MODEL,
        host=args.host or environ.get("GRADIO_SERVER_NAME") or ("0.0.0.0" if in_space else "127.0.0.1"),
        port=port,
        is_hosted=is_hosted,
        num_blocks=None if is_hosted else HOME_BLOCKS,
        kv_cache_memory_bytes=hosted_pool_bytes(memory_limit) if is_hosted else HOME_POOL_BYTES,
        limits=HOSTED_LIMITS if is_hosted else Limits(),
    )


def hosted_pool_bytes(memory_limit: int | None) -> int:
    """An eighth of the memory, 64 to 704 MiB: beside it live the weights, PyTorch and the page.

    704 MiB are about 2,000 blocks of the default model, as many as the block map shows well.
    """
    if memory_limit is None:
        return 256 * _MIB
    return min(max(memory_limit // 8, 64 * _MIB), 704 * _MIB)


def _flag(parser: argparse.ArgumentParser, name: str, value: str | None, default: bool) -> bool:
    if value is None:
        return default
    text = value.strip().lower()
    if text not in _YES | _NO:
        parser.error(f"{name}={value!r} is neither on nor off; use 1 or 0.")
    return text in _YES


def _port(parser: argparse.ArgumentParser, value: str | None) -> int:
    if not value:
        return DEFAULT_PORT
    if not value.isdigit():
        parser.error(f"GRADIO_SERVER_PORT={value!r} is not a port; allowed: 1 to 65535.")
    return int(value)
