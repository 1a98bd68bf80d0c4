"""ModelConfig: what a Hugging Face ``config.json`` says about a decoder, checked, in one spelling.

Whatever would change the numbers and is not implemented is refused here, by its key, before memory is spent.
Source: https://huggingface.co/docs/transformers/main_classes/configuration
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from micro_vllm.errors import ConfigError, ModelLoadError, UnsupportedModelError
from micro_vllm.layers.rope_config import RopeConfig, read_rope

CONFIG_FILE = "config.json"
GENERATION_CONFIG_FILE = "generation_config.json"
DTYPE_NAMES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Family:
    """What sets one architecture's ``config.json`` apart from the others'."""

    defaults: Mapping[str, Any]
    """What transformers assumes where the file has no such key."""
    qk_norm: bool = False
    has_attention_bias: bool = False
    """Whether ``attention_bias`` means anything; where it does not, transformers builds no bias."""
    has_mlp_bias: bool = False
    layer_windows: Callable[[Mapping[str, Any], int], tuple[int | None, ...]] = field(
        default=lambda hf, num_layers: (None,) * num_layers
    )
    """(config.json, number of layers) -> what each layer sees."""


@dataclass(frozen=True)
class ModelConfig:
    """One decoder, as its folder describes it. Sizes in elements, lengths in tokens."""

    architecture: str
    vocab_size: int
    """Rows of the embedding; may exceed the tokenizer's size (padding rows)."""
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    qk_norm: bool
    layer_windows: tuple[int | None, ...]
    """Per layer, the tokens a query sees, itself included; None sees all."""
    eos_token_ids: tuple[int, ...]
    """Union of config.json and generation_config.json."""
    bos_token_id: int | None
    dtype: str | None
    """The dtype the folder asks for; None where it names none."""

    @property
    def max_model_len(self) -> int:
        """The longest sequence for which the positions mean what they meant in training or rescaling."""
        return self.rope.max_length(self.max_position_embeddings)

    def check_max_model_len(self, max_model_len: int) -> None:
        """Refuse a length the positions do not carry.

        Raises:
            ConfigError: ``max_model_len`` is more than :attr:`max_model_len`.
        """
        limit = self.max_model_len
        if max_model_len > limit:
            why = (
                " (dynamic rope depends on the longest sequence beyond it, which a KV cache cannot honour)"
                if self.rope.type == "dynamic"
                else ""
            )
            raise ConfigError(
                f"max_model_len={max_model_len} is more than this model carries; allowed: 2 to {limit}{why}."
            )

    @classmethod
    def from_hf(
        cls,
        hf: Mapping[str, Any],
        generation_config: Mapping[str, Any] | None = None,
        *,
        source: str = CONFIG_FILE,
    ) -> ModelConfig:
        """Read a parsed ``config.json`` (and ``generation_config.json``).

        Raises:
            UnsupportedModelError: an architecture, rope type, activation or quantisation not implemented.
            ModelLoadError: a key is missing or makes no sense. ``source`` names the file in both.
        """
        from micro_vllm.models.registry import get_family

        architecture = _architecture(hf, source)
        family = get_family(architecture)
        keys = _Keys({**family.defaults, **hf}, source)
        _refuse_unsupported(keys, source)
        num_layers = keys.positive("num_hidden_layers")
        num_heads = keys.positive("num_attention_heads")
        num_kv_heads = keys.positive("num_key_value_heads", default=num_heads)
        if num_heads % num_kv_heads:
            raise ModelLoadError(
                f"{source}: num_attention_heads={num_heads} is no multiple of "
                f"num_key_value_heads={num_kv_heads}."
            )
        hidden_size = keys.positive("hidden_size")
        head_dim = keys.positive("head_dim", default=hidden_size // num_heads)
        if head_dim % 2:
            raise ModelLoadError(f"{source}: head_dim={head_dim} is odd; rotary positions need pairs.")
        max_positions = keys.positive("max_position_embeddings")
        generation = generation_config or {}
        bos = keys.get("bos_token_id")
        return cls(
            architecture=architecture,
            vocab_size=keys.positive("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=keys.positive("intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            rms_norm_eps=keys.number("rms_norm_eps"),
            rope=read_rope(keys.values, max_positions, source),
            max_position_embeddings=max_positions,
            tie_word_embeddings=keys.flag("tie_word_embeddings"),
            attention_bias=family.has_attention_bias and keys.flag("attention_bias"),
            mlp_bias=family.has_mlp_bias and keys.flag("mlp_bias"),
            qk_norm=family.qk_norm,
            layer_windows=family.layer_windows(keys.values, num_layers),
            eos_token_ids=_eos_ids((hf, source), (generation, GENERATION_CONFIG_FILE)),
            bos_token_id=bos if isinstance(bos, int) and not isinstance(bos, bool) else None,
            dtype=_dtype_name(hf, source),
        )


def window_value(hf: Mapping[str, Any], key: str = "sliding_window") -> int | None:
    """A window from config.json: a positive number of tokens, or None for full attention."""
    window = hf.get(key)
    if window is None:
        return None
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise ModelLoadError(f"{CONFIG_FILE}: {key}={window!r} must be null or a whole number, 1 or more.")
    return window


def windows_by_layer_type(
    hf: Mapping[str, Any], num_layers: int, window: int | None
) -> tuple[int | None, ...]:
    """Per layer what ``layer_types`` says: ``window`` for sliding layers, None for full ones."""
    kinds = {"full_attention": None, "sliding_attention": window}
    layer_types = hf["layer_types"]
    if not isinstance(layer_types, list) or len(layer_types) != num_layers:
        raise ModelLoadError(
            f"{CONFIG_FILE}: layer_types must list one kind for each of the {num_layers} layers; "
            f"got {layer_types!r}."
        )
    for kind in layer_types:
        if kind not in kinds:
            raise UnsupportedModelError(
                f"{CONFIG_FILE}: layer_types holds {kind!r}, which is not implemented; "
                f"known: {', '.join(kinds)}."
            )
    return tuple(kinds[kind] for kind in layer_types)


class _Keys:
    """Typed access to a config.json, defaults filled in; errors name the file and the key."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values = values
        self.source = source

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def positive(self, key: str, default: int | None = None) -> int:
        value = self._required(key) if default is None else self.values.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelLoadError(f"{self.source}: {key}={value!r} must be a whole number, 1 or more.")
        return value

    def number(self, key: str) -> float:
        value = self._required(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ModelLoadError(f"{self.source}: {key}={value!r} must be a number above 0.")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise ModelLoadError(f"{self.source}: {key}={value!r} must be true or false.")
        return bool(value)

    def _required(self, key: str) -> Any:
        if self.values.get(key) is None:
            raise ModelLoadError(f"{self.source} has no {key!r}; the folder is incomplete or another format.")
        return self.values[key]


def _architecture(hf: Mapping[str, Any], source: str) -> str:
    from micro_vllm.models.registry import architectures_available

    named = hf.get("architectures")
    if not isinstance(named, list) or not named or not isinstance(named[0], str):
        raise ModelLoadError(f"{source} names no architecture: 'architectures' is {named!r}.")
    if named[0] not in architectures_available():
        remote = " Its own code ('auto_map') is never run." if hf.get("auto_map") else ""
        raise UnsupportedModelError(
            f"{source}: architecture {named[0]!r} is not implemented; known: "
            f"{', '.join(architectures_available())}.{remote}"
        )
    return named[0]


def _refuse_unsupported(keys: _Keys, source: str) -> None:
    activation = keys.get("hidden_act")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(f"{source}: hidden_act={activation!r} is not implemented; known: 'silu'.")
    quantization = keys.get("quantization_config")
    if quantization is not None:
        named = isinstance(quantization, Mapping)
        method = quantization.get("quant_method", "unnamed") if named else quantization
        raise UnsupportedModelError(
            f"{source}: quantization_config ({method!r}) is not implemented; "
            "use the folder with the original float weights."
        )


def _eos_ids(*sources: tuple[Mapping[str, Any], str]) -> tuple[int, ...]:
    """Every EOS id that any of the files names, in the order met (E19)."""
    found: dict[int, None] = {}
    for values, name in sources:
        ids = values.get("eos_token_id")
        for token_id in ids if isinstance(ids, list) else [] if ids is None else [ids]:
            if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
                raise ModelLoadError(f"{name}: eos_token_id holds {token_id!r}, which is no token id.")
            found[token_id] = None
    return tuple(found)


def _dtype_name(hf: Mapping[str, Any], source: str) -> str | None:
    # transformers 5 writes "dtype", earlier versions "torch_dtype".
    name = hf.get("dtype") or hf.get("torch_dtype")
    if name is None:
        return None
    plain = str(name).removeprefix("torch.")
    if plain not in DTYPE_NAMES:
        raise UnsupportedModelError(
            f"{source}: dtype {name!r} is not implemented; known: {', '.join(DTYPE_NAMES)}."
        )
    return plain
