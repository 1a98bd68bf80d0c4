"""What an engine must know of a model, without its weights.

Made from a LoadedModel, or by hand for a scripted executor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from micro_vllm.model_loader import LoadedModel
    from micro_vllm.tokenizer import Tokenizer

DEFAULT_MAX_MODEL_LEN = 8192
"""Without ``max_model_len`` a longer context than this must be asked for: tables and pools grow with it."""


@dataclass(frozen=True)
class ServedModel:
    """Facts the engine checks requests against."""

    name: str
    layer_windows: tuple[int | None, ...]
    """Per layer, how many tokens are visible; None for all."""
    vocab_size: int
    """Ids below this are valid; rows that only pad the embedding do not count."""
    max_position_embeddings: int
    """The longest sequence its positions carry, after any rope scaling."""
    eos_token_ids: frozenset[int] = frozenset()
    bos_token_id: int | None = None
    tokenizer: Tokenizer | None = None

    @classmethod
    def of(cls, loaded: LoadedModel) -> ServedModel:
        config, tokenizer = loaded.config, loaded.tokenizer
        eos: Sequence[int] = config.eos_token_ids
        vocab_size, bos = config.vocab_size, config.bos_token_id
        if tokenizer is not None:
            eos = (*eos, *tokenizer.eos_token_ids)
            vocab_size = min(vocab_size, tokenizer.vocab_size)
            bos = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else bos
        return cls(
            name=loaded.name,
            layer_windows=config.layer_windows,
            vocab_size=vocab_size,
            max_position_embeddings=config.max_model_len,
            eos_token_ids=frozenset(eos),
            bos_token_id=bos,
            tokenizer=tokenizer,
        )
