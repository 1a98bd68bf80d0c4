"""One row per live request, and the flattened batch of a step built from the rows.

A plan brings only what is new, so a step costs O(new tokens + scheduled requests): a row keeps the block
tables, the sampling settings and the counts that came before. Rows are reused, never moved.

Most steps are those of the step before, one token further. What is the same for as long as the same requests come in
the same order, and what is until one of them gets a block, is kept; and numbers are put where the last step's were.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import msgspec
import numpy as np
import torch

from micro_vllm.attention.metadata import AttentionMetadata, GroupMetadata
from micro_vllm.config import NULL_BLOCK
from micro_vllm.core.scheduler_output import ExecutionPlan, NewRequest, ScheduledRequest
from micro_vllm.errors import IntegrityError
from micro_vllm.sampling.constraints import ConstrainedRow, LogitConstraints
from micro_vllm.sampling.sampler import SamplingMetadata
from micro_vllm.sampling.settings import NO_LOGPROBS, SamplingSettings
from micro_vllm.worker.column import Column


class ModelInputs(msgspec.Struct, frozen=True, eq=False):
    """One step's batch: R requests, those with a single token first; T tokens; N of the requests draw one."""

    token_ids: torch.Tensor
    """(T,) int64"""
    attention: AttentionMetadata
    logits_indices: torch.Tensor | None
    """(N,) int64, index among the T of the last token of every request that draws; None if these are all T in order"""
    sampling_ids: tuple[str, ...]
    """(N,) their request ids"""
    sampling: SamplingMetadata
    """Their settings"""


class InputBatch:
    """The rows of all live requests."""

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_model_len: int,
        num_groups: int,
        block_size: int,
        num_valid_ids: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.block_size = block_size
        self.num_valid_ids = num_valid_ids
        self.device = torch.device(device)
        self._row_of: dict[str, int] = {}
        self._free_rows = list(range(max_num_seqs))[::-1]
        self._max_num_seqs = max_num_seqs
        width = -(-max_model_len // block_size) + 1
        # Invariant: cells of a row past its number of blocks hold the null block.
        self._block_tables = [np.full((max_num_seqs, width), NULL_BLOCK, np.int64) for _ in range(num_groups)]
        # The same without the cells behind, in lists: reading single cells of an array wakes numpy for each.
        self._block_ids: list[list[list[int]]] = [
            [[] for _ in range(max_num_seqs)] for _ in range(num_groups)
        ]
        self._num_known = [0] * max_num_seqs  # tokens the row's constraints have seen
        self._temperature = np.zeros(max_num_seqs, np.float64)
        self._top_k = np.zeros(max_num_seqs, np.int64)
        self._top_p = np.ones(max_num_seqs, np.float64)
        self._min_p = np.zeros(max_num_seqs, np.float64)
        self._seeds = np.zeros(max_num_seqs, np.int64)
        self._num_logprobs = np.full(max_num_seqs, NO_LOGPROBS, np.int64)
        self._constraints: dict[int, LogitConstraints] = {}  # rows that have any
        self._token_ids = Column(self.device)
        self._positions = Column(self.device)
        self._slots = [Column(self.device) for _ in range(num_groups)]
        # Kept from the last step; dropped when a row of theirs changes.
        self._last_ids: tuple[str, ...] = ()
        self._row_numbers: list[int] = []  # of the last ids
        self._last_rows = np.zeros(0, np.int64)  # the same
        self._tables: tuple[np.ndarray, int, tuple[torch.Tensor, ...]] | None = None  # rows, width, per group
        self._settings: tuple[np.ndarray, SamplingSettings] | None = None  # rows

    @property
    def request_ids(self) -> tuple[str, ...]:
        """Live requests, oldest first."""
        return tuple(self._row_of)

    # ------------------------------------------------------------ rows

    def apply_plan(self, plan: ExecutionPlan) -> None:
        """Bring the rows up to date: drop who left, add who is new, append blocks and tokens.

        Ids that have no row may leave, and an id that still has one may come back as new (its step failed):
        then the old row is dropped first.

        Raises:
            IntegrityError: a scheduled request has no row, or there are more requests than rows.
        """
        for request_id in chain(plan.finished_ids, plan.preempted_ids):
            self._drop(request_id)
        for request in plan.new:
            self._drop(request.request_id)
            self._add(request)
        for scheduled in plan.scheduled:
            row = self._row_of.get(scheduled.request_id)
            if row is None:
                raise IntegrityError(
                    f"request {scheduled.request_id!r} is scheduled, but the runner was never told of it."
                )
            for group, block_ids in enumerate(scheduled.new_block_ids):
                if block_ids:
                    self._append_blocks(group, row, block_ids)
            if row in self._constraints:
                end = scheduled.start + scheduled.count
                if end > self._num_known[row]:
                    unseen = self._num_known[row] - scheduled.start
                    self._constraints[row].append_outputs(scheduled.new_token_ids[unseen:])
                    self._num_known[row] = end

    def _add(self, request: NewRequest) -> None:
        if not self._free_rows:
            raise IntegrityError(
                f"request {request.request_id!r} is one more than the max_num_seqs={self._max_num_seqs} rows."
            )
        row = self._free_rows.pop()
        self._forget()
        self._row_of[request.request_id] = row
        for group, block_ids in enumerate(request.block_ids):
            self._append_blocks(group, row, block_ids)
        self._num_known[row] = len(request.token_ids)
        spec = request.sampling
        self._temperature[row] = spec.temperature
        self._top_k[row] = spec.top_k
        self._top_p[row] = spec.top_p
        self._min_p[row] = spec.min_p
        self._seeds[row] = spec.seed
        self._num_logprobs[row] = NO_LOGPROBS if spec.num_logprobs is None else spec.num_logprobs
        if LogitConstraints.needed(spec):
            prompt, output = np.split(np.asarray(request.token_ids), [request.num_prompt_tokens])
            self._constraints[row] = LogitConstraints(
                spec, prompt.tolist(), output.tolist(), self.num_valid_ids
            )

    def _drop(self, request_id: str) -> None:
        row = self._row_of.pop(request_id, None)
        if row is None:
            return
        self._forget()
        for table, block_ids in zip(self._block_tables, self._block_ids, strict=True):
            table[row, : len(block_ids[row])] = NULL_BLOCK
            block_ids[row] = []
        self._constraints.pop(row, None)
        self._free_rows.append(row)

    def _forget(self) -> None:
        self._last_ids = ()
        self._tables = self._settings = None

    def _append_blocks(self, group: int, row: int, block_ids: tuple[int, ...]) -> None:
        table = self._block_tables[group]
        self._tables = None
        first = len(self._block_ids[group][row])
        last = first + len(block_ids)
        if last > table.shape[1]:  # a longer table than max_model_len asks for: lookahead of a scheduler
            wider = np.full((len(table), max(last, 2 * table.shape[1])), NULL_BLOCK, np.int64)
            wider[:, : table.shape[1]] = table
            self._block_tables[group] = table = wider
        table[row, first:last] = block_ids
        self._block_ids[group][row] += block_ids

    # ------------------------------------------------------------ the batch

    def build(self, plan: ExecutionPlan) -> ModelInputs:
        """Flatten a plan that was applied; it must schedule at least one token. Valid until the next call.

        Raises:
            IntegrityError: a token's place is past the end of its request's block table.
        """
        scheduled = plan.scheduled
        if plan.num_tokens == len(scheduled):
            return self._build_singles(scheduled)
        # Single tokens first: attention treats decodes as one batched call.
        ordered = sorted(scheduled, key=_has_many_tokens)  # stable
        rows = self._rows(tuple([s.request_id for s in ordered]))  # (R,)
        num_tokens = plan.num_tokens
        starts = np.array([s.start for s in ordered])  # (R,)
        counts = np.array([s.count for s in ordered])  # (R,)
        tokens = chain.from_iterable([s.new_token_ids for s in ordered])
        ends = counts.cumsum()
        # Within a request positions run from its start: subtract where the request begins in the batch.
        positions = np.arange(num_tokens) + np.repeat(starts - (ends - counts), counts)  # (T,)
        samples = np.array([s.samples for s in ordered])  # (R,)
        drawing = [s for s in ordered if s.samples]
        return ModelInputs(
            token_ids=self._tensor(np.fromiter(tokens, np.int64, num_tokens)),
            attention=AttentionMetadata(
                query_lens=tuple(counts.tolist()),
                context_lens=tuple(starts.tolist()),
                num_decodes=len(ordered) - sum(map(_has_many_tokens, ordered)),
                positions=self._tensor(positions),
                groups=self._groups(rows, np.repeat(rows, counts).tolist(), positions.tolist()),
                block_size=self.block_size,
            ),
            logits_indices=self._tensor((ends - 1)[samples]),
            sampling_ids=tuple([s.request_id for s in drawing]),
            sampling=self._sampling_metadata(rows[samples], [s.output_index for s in drawing]),
        )

    def _build_singles(self, scheduled: Sequence[ScheduledRequest]) -> ModelInputs:
        """The same for one token each, most steps by far. T, R and, if all draw, N are one.

        In lists: for a few dozen numbers a loop costs less than the calls of numpy that it saves.
        """
        ids = tuple([s.request_id for s in scheduled])
        starts = [s.start for s in scheduled]
        output_index = [s.output_index for s in scheduled if s.samples]
        rows = self._rows(ids)  # (R,)
        all_draw = len(output_index) == len(ids)
        drawing = () if all_draw else [index for index, s in enumerate(scheduled) if s.samples]
        return ModelInputs(
            token_ids=self._token_ids.fill([s.new_token_ids[0] for s in scheduled]),
            attention=AttentionMetadata(
                query_lens=(1,) * len(ids),
                context_lens=tuple(starts),
                num_decodes=len(ids),
                positions=self._positions.fill(starts),
                groups=self._groups(rows, self._row_numbers, starts),
                block_size=self.block_size,
            ),
            logits_indices=None if all_draw else self._tensor(np.array(drawing, np.int64)),
            sampling_ids=ids if all_draw else tuple([ids[index] for index in drawing]),
            sampling=self._sampling_metadata(rows if all_draw else rows[drawing], output_index),
        )

    def _rows(self, ids: tuple[str, ...]) -> np.ndarray:
        """(R,) the rows of these requests; the same array as long as they are the same."""
        if self._last_ids != ids:
            self._last_ids = ids
            self._row_numbers = [self._row_of[request_id] for request_id in ids]
            self._last_rows = np.array(self._row_numbers, np.int64)
        return self._last_rows

    def _groups(
        self, rows: np.ndarray, row_of_token: Sequence[int], positions: Sequence[int]
    ) -> tuple[GroupMetadata, ...]:
        """Of (R,) ``rows``, and of T tokens in ``row_of_token`` at ``positions``."""
        size = self.block_size
        slots = []
        for group, block_ids in enumerate(self._block_ids):
            try:
                in_group = [
                    block_ids[row][position // size] * size + position % size
                    for row, position in zip(row_of_token, positions, strict=True)
                ]
            except IndexError:
                raise self._too_few_blocks(group, row_of_token, positions) from None
            slots.append(self._slots[group].fill(in_group))
        tables = self._tables_of(rows, max(positions) // size + 1)
        return tuple(map(GroupMetadata, tables, slots))

    def _tables_of(self, rows: np.ndarray, width: int) -> tuple[torch.Tensor, ...]:
        """Per group (R, width); the same tensors until one of the rows gets a block."""
        known = self._tables
        if known is None or known[0] is not rows or known[1] != width:
            tables = tuple([self._tensor(table[rows, :width]) for table in self._block_tables])
            self._tables = known = (rows, width, tables)
        return known[2]

    def _too_few_blocks(
        self, group: int, row_of_token: Sequence[int], positions: Sequence[int]
    ) -> IntegrityError:
        num_tokens: dict[int, int] = {}  # a later token of a row replaces an earlier one
        for row, position in zip(row_of_token, positions, strict=True):
            num_tokens[row] = position + 1
        request_id, num_blocks, tokens, needed = next(
            (
                request_id,
                len(self._block_ids[group][row]),
                num_tokens[row],
                -(-num_tokens[row] // self.block_size),
            )
            for request_id, row in self._row_of.items()
            if num_tokens.get(row, 0) > len(self._block_ids[group][row]) * self.block_size
        )
        return IntegrityError(
            f"request {request_id!r} has {num_blocks} blocks in group {group}, but its {tokens} tokens need {needed}."
        )

    def _sampling_metadata(self, rows: np.ndarray, output_index: Sequence[int]) -> SamplingMetadata:
        """Of the (N,) rows that draw; the same settings as long as these are the same."""
        known = self._settings
        if known is not None and known[0] is not rows and np.array_equal(known[0], rows):
            self._settings = known = (rows, known[1])
        if known is None or known[0] is not rows:
            settings = SamplingSettings(
                temperature=self._temperature[rows],
                top_k=self._top_k[rows],
                top_p=self._top_p[rows],
                min_p=self._min_p[rows],
                seeds=self._seeds[rows],
                num_logprobs=self._num_logprobs[rows],
            )
            self._settings = known = (rows, settings)
        constrained = []
        if self._constraints:
            constrained = [
                ConstrainedRow(place, self._constraints[row])
                for place, row in enumerate(rows.tolist())
                if row in self._constraints
            ]
        return SamplingMetadata(known[1], output_index, constrained)

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device)


def _has_many_tokens(scheduled: ScheduledRequest) -> bool:
    return scheduled.count > 1
