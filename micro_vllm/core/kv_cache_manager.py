"""Owns allocation, sharing and release of KV blocks for all cache groups over one pool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from micro_vllm.config import NULL_BLOCK, CacheConfig
from micro_vllm.core.block import BlockPool
from micro_vllm.core.cache_group_manager import make_group_manager
from micro_vllm.core.prefix_cache import PrefixCache
from micro_vllm.core.request import Request
from micro_vllm.errors import IntegrityError
from micro_vllm.trace.events import PrefixLookup
from micro_vllm.trace.sinks import Tracer


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """What a lookup found: ``num_blocks`` leading blocks on which all groups agree."""

    num_blocks: int
    num_tokens: int
    group_tokens: tuple[int, ...]
    """Tokens each group alone would have given."""


class KVCacheManager:
    """The scheduler asks, this room answers with block ids.

    Invariant: a block is on the free list exactly when no table holds it. What is asked for is taken for all groups
    or for none.
    """

    def __init__(self, config: CacheConfig, max_chunk: int, tracer: Tracer | None = None) -> None:
        self.config = config
        self.max_chunk = max_chunk
        """Most tokens of one request in one step: how far a windowed group reaches at once."""
        self.prefix_cache = PrefixCache(tracer)
        self.pool = BlockPool(config.num_blocks, self.prefix_cache)
        self.groups = [
            make_group_manager(group, config.block_size, self.pool, self.prefix_cache, tracer)
            for group in config.groups
        ]
        self._room: dict[str, int] = {}
        """Running request -> so many tokens change none of its tables; it may be out of date, being too small."""
        self._nothing: tuple[tuple[int, ...], ...] = ((),) * len(self.groups)
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        self._tracer = tracer

    # ------------------------------------------------------------ capacity

    def blocks_for(self, num_tokens: int) -> int:
        """Most blocks a request of ``num_tokens`` ever holds at once, over all groups."""
        return sum(group.blocks_for(num_tokens, self.max_chunk) for group in self.groups)

    def capacity_in_tokens(self, most: int) -> int:
        """Longest request that the whole pool can hold, at most ``most`` tokens."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks_for(middle) <= self.config.num_blocks:
                low = middle
            else:
                high = middle - 1
        return low

    # ------------------------------------------------------------ admission

    def lookup(self, request: Request) -> PrefixHit:
        """How much of the request is cached. Changes nothing.

        Capped below the whole request before the groups agree, since at least one token must be computed to have
        logits. Each group may only shrink the hit, so the loop ends: a fixed point.
        """
        if not self.config.enable_prefix_caching:
            return PrefixHit(0, 0, (0,) * len(self.groups))
        block_size = self.config.block_size
        request.extend_hashes(block_size)
        cap = (request.num_tokens - 1) // block_size
        alone = [group.longest_hit(request.block_hashes, cap) for group in self.groups]
        agreed = min(alone)
        while True:
            shrunk = min(group.longest_hit(request.block_hashes, agreed) for group in self.groups)
            if shrunk == agreed:
                break
            agreed = shrunk
        return PrefixHit(agreed, agreed * block_size, tuple(hit * block_size for hit in alone))

    def fits(self, request: Request, hit: PrefixHit, running: Iterable[Request]) -> bool:
        """Whether the request may start without driving others, or itself, out again.

        All its tokens so far must fit beside what running prompts still need and one block of headroom (in each
        group) for every running request. Hit blocks that nobody uses count as needed: taking them uses up free ones.
        """
        need = self.blocks_for(request.num_tokens) - sum(
            group.num_shared(request.block_hashes, hit.num_blocks) for group in self.groups
        )
        reserved = sum(self._still_needed(other) + len(self.groups) for other in running)
        return need + reserved <= self.pool.num_free

    def _still_needed(self, request: Request) -> int:
        """Blocks a running request will take until all its present tokens are computed."""
        return sum(
            max(0, group.blocks_for(request.num_tokens, self.max_chunk) - group.num_held(request))
            for group in self.groups
        )

    def admit(self, request: Request, hit: PrefixHit) -> None:
        """Begin the request's tables with the hit. All hit blocks of all groups are referenced here, before
        anything is allocated, so that no group can evict what another one counts on."""
        for group in self.groups:
            group.reference_hit(request, hit.num_blocks)
        if self.config.enable_prefix_caching:
            self.num_queried_tokens += request.num_tokens
            self.num_hit_tokens += hit.num_tokens
            if self._tracer:
                self._tracer.emit(
                    PrefixLookup,
                    request_id=request.request_id,
                    num_tokens=request.num_tokens,
                    num_hit_tokens=hit.num_tokens,
                    group_hits=hit.group_tokens,
                )

    # ------------------------------------------------------------ running

    def allocate(self, request: Request, count: int) -> tuple[tuple[int, ...], ...] | None:
        """Slots for the next ``count`` tokens: new block ids per group, or None if the pool cannot give them all."""
        num_tokens = request.num_computed_tokens + count
        if num_tokens <= self._room.get(request.request_id, 0):
            return self._nothing
        for group in self.groups:
            group.release_passed(request)
        missing = [max(0, group.num_missing(request, num_tokens)) for group in self.groups]
        if sum(missing) > self.pool.num_free:
            return None
        new = tuple(group.append_blocks(request, n) for group, n in zip(self.groups, missing, strict=True))
        self._room[request.request_id] = min(group.num_tokens_unchanged(request) for group in self.groups)
        return new

    def register_full(self, request: Request, count: int) -> None:
        """Make blocks hittable that became full when ``num_computed_tokens`` grew by ``count``."""
        if self.config.enable_prefix_caching and request.num_computed_tokens % self.config.block_size < count:
            request.extend_hashes(self.config.block_size)
            for group in self.groups:
                group.register_full(request)

    def free(self, request: Request) -> None:
        """Drop all blocks of a request; what is cached stays hittable until it is handed out again."""
        self._room.pop(request.request_id, None)
        for group in self.groups:
            group.free(request)

    def tables(self, request_id: str) -> tuple[tuple[int, ...], ...]:
        """Block table per group; empty ones for a request that holds nothing."""
        return tuple(tuple(group.tables.get(request_id, ())) for group in self.groups)

    # ------------------------------------------------------------ integrity

    def check_integrity(self, running: Sequence[Request]) -> None:
        """Adds up tables, reference counts, free list and hashes. Raises IntegrityError."""
        ref_counts = [0] * (self.config.num_blocks + 1)
        expected = {request.request_id for request in running}
        if not self._room.keys() <= expected:
            raise IntegrityError(f"room is kept for {sorted(self._room)}, running are {sorted(expected)}")
        for request in running:
            room = min(group.num_tokens_unchanged(request) for group in self.groups)
            if self._room.get(request.request_id, 0) > room:
                raise IntegrityError(f"{request.request_id} has room for {room} tokens, not for more")
        for group in self.groups:
            if group.tables.keys() != expected:
                raise IntegrityError(
                    f"group {group.group.group_id} has tables of {sorted(group.tables)}, "
                    f"running are {sorted(expected)}"
                )
            for request in running:
                table = group.tables[request.request_id]
                visible = group.first_visible_block(request.num_computed_tokens)
                if NULL_BLOCK in table[visible:]:
                    raise IntegrityError(f"{request.request_id} lost a visible block: {table}")
                if len(table) * self.config.block_size < request.num_computed_tokens:
                    raise IntegrityError(f"{request.request_id} has computed tokens without a slot")
                for block_id in table:
                    if block_id != NULL_BLOCK:
                        ref_counts[block_id] += 1
                if len(set(table) - {NULL_BLOCK}) != sum(b != NULL_BLOCK for b in table):
                    raise IntegrityError(f"{request.request_id} holds a block twice: {table}")
        self.pool.check_integrity(ref_counts)
