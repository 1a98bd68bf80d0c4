"""Whether what an engine asks for fits the machine: asked before anything is allocated.

Linux gives memory on credit: a pool far beyond the machine is allocated without complaint, and the process is
killed when the pages are touched. So sizes are added up beforehand.
"""

from __future__ import annotations

import torch

from micro_vllm.errors import ConfigError

BOOKKEEPING_BYTES = 256
"""Per block, in the engine's own lists: a Block, its links, its hash."""
ROW_BYTES = 512
"""Per seat, besides its block tables: sampling settings and counts."""


def check_pool_fits(
    num_blocks: int, block_size: int, block_bytes: int, device: torch.device, limit: int | None
) -> None:
    """The KV cache with its null block, against ``limit`` bytes (None: unknown).

    Raises:
        ConfigError: with both sizes, and how many blocks fit.
    """
    on_host = BOOKKEEPING_BYTES + (block_bytes if device.type == "cpu" else 0)
    needed = (num_blocks + 1) * on_host
    if limit is not None and needed > limit:
        raise ConfigError(
            f"{num_blocks:,} KV blocks of {block_size:,} tokens need {needed:,} bytes, but this machine has {limit:,}; "
            f"at most {max(0, limit // on_host - 1):,} such blocks fit. Lower num_gpu_blocks_override, "
            "kv_cache_memory_bytes or block_size."
        )


def check_rows_fit(
    max_num_seqs: int, max_model_len: int, block_size: int, num_groups: int, limit: int | None
) -> None:
    """The block tables of all seats, against ``limit`` bytes (None: unknown).

    Raises:
        ConfigError: with both sizes, and what to lower.
    """
    width = -(-max_model_len // block_size) + 1
    needed = max_num_seqs * (num_groups * width * 8 + ROW_BYTES)
    if limit is not None and needed > limit:
        raise ConfigError(
            f"the block tables of max_num_seqs={max_num_seqs:,} requests of up to {max_model_len:,} tokens need "
            f"{needed:,} bytes, but this machine has {limit:,}. Lower max_num_seqs."
        )
