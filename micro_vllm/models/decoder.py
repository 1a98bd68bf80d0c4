"""The decoder that Llama, Mistral and Qwen3 share; the family files say what differs.

Source: https://arxiv.org/abs/2302.13971 (pre-norm, SwiGLU, rotary positions). The T tokens of all
requests lie in one flat batch; module names are the checkpoint's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from micro_vllm.attention.attention import AttentionContext
from micro_vllm.attention.spec import AttentionSpec
from micro_vllm.layers.embedding import TokenEmbedding
from micro_vllm.layers.linear import FusedLinear, Linear
from micro_vllm.layers.mlp import GatedMLP
from micro_vllm.layers.norm import RMSNorm
from micro_vllm.layers.prepacked import PrepackedProduct, can_prepack
from micro_vllm.layers.rotary import RotaryEmbedding, apply_rotary
from micro_vllm.models.config import Family, ModelConfig
from micro_vllm.models.weights import fill_slots, weight_slots


class Attention(nn.Module):
    """Projections, optional q/k norm and rotary positions around the attention runtime."""

    q_norm: RMSNorm | None
    k_norm: RMSNorm | None

    def __init__(
        self, config: ModelConfig, layer_id: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        self.layer_id = layer_id
        self.spec = AttentionSpec(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
            window=config.layer_windows[layer_id],
        )
        q_size = config.num_heads * config.head_dim
        kv_size = config.num_kv_heads * config.head_dim
        self.split_sizes = [q_size + kv_size, kv_size]
        bias = config.attention_bias
        self.qkv_proj = FusedLinear(
            config.hidden_size,
            {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size},
            bias=bias,
            dtype=dtype,
            device=device,
        )
        self.o_proj = Linear(q_size, config.hidden_size, bias=bias, dtype=dtype, device=device)
        self.q_norm = self.k_norm = None
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps, dtype=dtype, device=device)
            self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps, dtype=dtype, device=device)

    def forward(
        self,
        hidden: torch.Tensor,  # (T, hidden)
        cos: torch.Tensor,  # (T, 1, D)
        sin: torch.Tensor,  # (T, 1, D)
        context: AttentionContext,
    ) -> torch.Tensor:  # (T, hidden)
        spec = self.spec
        qk, v = self.qkv_proj(hidden).split(self.split_sizes, dim=-1)
        qk = qk.unflatten(-1, (-1, spec.head_dim))  # (T, H + H_kv, D): queries and keys turn together
        v = v.unflatten(-1, (-1, spec.head_dim))  # (T, H_kv, D)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = qk.split([spec.num_heads, spec.num_kv_heads], dim=1)
            qk = torch.cat((self.q_norm(q), self.k_norm(k)), dim=1)
        q, k = apply_rotary(qk, cos, sin).split([spec.num_heads, spec.num_kv_heads], dim=1)
        out = context.attend(self.layer_id, spec, q, k, v)  # (T, H, D)
        return self.o_proj(out.flatten(1))


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a residual."""

    def __init__(
        self, config: ModelConfig, layer_id: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        eps = config.rms_norm_eps
        self.self_attn = Attention(config, layer_id, dtype, device)
        self.mlp = GatedMLP(
            config.hidden_size, config.intermediate_size, bias=config.mlp_bias, dtype=dtype, device=device
        )
        self.input_layernorm = RMSNorm(config.hidden_size, eps, dtype=dtype, device=device)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps, dtype=dtype, device=device)

    def forward(
        self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, context: AttentionContext
    ) -> torch.Tensor:  # (T, hidden) -> (T, hidden)
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), cos, sin, context)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Decoder(nn.Module):
    """Embedding, layers, final norm."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.embed_tokens = TokenEmbedding(config.vocab_size, config.hidden_size, dtype=dtype, device=device)
        layers = [DecoderLayer(config, layer_id, dtype, device) for layer_id in range(config.num_layers)]
        self.layers = nn.ModuleList(layers)
        self.attention_specs = tuple(layer.self_attn.spec for layer in layers)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype, device=device)
        self.rotary = RotaryEmbedding(config.rope, config.head_dim, device)

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, context: AttentionContext
    ) -> torch.Tensor:  # (T,), (T,) -> (T, hidden)
        hidden = self.embed_tokens(token_ids)
        cos, sin = self.rotary(positions, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, cos, sin, context)
        return self.norm(hidden)


class DecoderForCausalLM(nn.Module):
    """A decoder and its head, tied to the embedding or not. Families subclass it with their ``family``.

    ``device="meta"`` builds it without memory, to learn which tensors it needs. Otherwise its parameters are
    allocated once, in ``dtype``, with no values until :meth:`load_weights`.
    """

    family: ClassVar[Family]

    lm_head: Linear | None

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config, dtype, device)
        self.attention_specs: tuple[AttentionSpec, ...] = self.model.attention_specs
        """Per layer, what its queries see."""
        self.lm_head = (
            None
            if config.tie_word_embeddings
            else Linear(config.hidden_size, config.vocab_size, dtype=dtype, device=device)
        )
        self._tied_head: PrepackedProduct | None = None
        self.eval()

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, context: AttentionContext
    ) -> torch.Tensor:
        """Hidden states ``(T, hidden)`` of tokens ``(T,) int64`` at ``positions (T,) int64``."""
        return self.model(token_ids, positions, context)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:  # (R, hidden) -> (R, vocab)
        """Logits of the rows that are sampled, in the model's dtype. Rows past the tokenizer are padding."""
        if self.lm_head is not None:
            return self.lm_head(hidden)
        if self._tied_head is not None:
            return self._tied_head(hidden)
        return F.linear(hidden, self.model.embed_tokens.weight)

    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor :meth:`load_weights` needs."""
        return {name: slot.shape for name, slot in weight_slots(self).items()}

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy a checkpoint's tensors, under Hugging Face names, into the fused parameters.

        Raises:
            ModelLoadError: a tensor is missing, unexpected, or of another shape; the message names it.
        """
        fill_slots(weight_slots(self), weights, self.config.tie_word_embeddings)

    def prepack(self) -> None:
        """Lay the loaded weights out for the CPU's kernels, where they have a layout for the dtype.

        For good: the plain values are given up, but for the embedding, whose rows are still looked up.
        """
        for module in self.modules():
            if isinstance(module, Linear):
                module.prepack()
        if self.lm_head is None and can_prepack(self.model.embed_tokens.weight):
            self._tied_head = PrepackedProduct(self.model.embed_tokens.weight)
