"""One row per live request, and the flattened batch of a step built from the rows.

A plan brings only what is new, so a step costs O(new tokens + scheduled requests): a row keeps the block
tables, the sampling settings and the counts that came before. Rows are reused, never moved.

Most steps are those of the step before, one token further. What is the same for as long as the same requests come in
the same order, and what is until one of them gets a block, is kept. Nothing that was handed out is ever changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from micro_vllm.attention.metadata import AttentionMetadata, GroupMetadata
from micro_vllm.config import NULL_BLOCK
from micro_vllm.core.scheduler_output import ExecutionPlan, NewRequest, ScheduledRequest
from micro_vllm.errors import IntegrityError
from micro_vllm.sampling.constraints import ConstrainedRow, LogitConstraints
from micro_vllm.sampling.sampler import SamplingMetadata
from micro_vllm.sampling.settings import NO_LOGPROBS, SamplingSettings


@dataclass(frozen=True, slots=True)
class ModelInputs:
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
        self._is_on_cpu = self.device.type == "cpu"
        self._row_of: dict[str, int] = {}
        self._free_rows = list(range(max_num_seqs))[::-1]
        self._max_num_seqs = max_num_seqs
        width = -(-max_model_len // block_size) + 1
        # Invariant: cells of a row past its number of blocks hold the null block.
        self._block_tables = [np.full((max_num_seqs, width), NULL_BLOCK, np.int64) for _ in range(num_groups)]
        self._num_blocks = [[0] * max_num_seqs for _ in range(num_groups)]
        self._num_known = [0] * max_num_seqs  # tokens the row's constraints have seen
        self._temperature = np.zeros(max_num_seqs, np.float64)
        self._top_k = np.zeros(max_num_seqs, np.int64)
        self._top_p = np.ones(max_num_seqs, np.float64)
        self._min_p = np.zeros(max_num_seqs, np.float64)
        self._seeds = np.zeros(max_num_seqs, np.int64)
        self._num_logprobs = np.full(max_num_seqs, NO_LOGPROBS, np.int64)
        self._constraints: dict[int, LogitConstraints] = {}  # rows that have any
        # Kept from the last step; dropped when a row of theirs changes.
        self._rows_of_ids: tuple[tuple[str, ...], np.ndarray] = ((), np.zeros(0, np.int64))
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
        for table, num_blocks in zip(self._block_tables, self._num_blocks, strict=True):
            table[row, : num_blocks[row]] = NULL_BLOCK
            num_blocks[row] = 0
        self._constraints.pop(row, None)
        self._free_rows.append(row)

    def _forget(self) -> None:
        self._rows_of_ids = ((), np.zeros(0, np.int64))
        self._tables = self._settings = None

    def _append_blocks(self, group: int, row: int, block_ids: tuple[int, ...]) -> None:
        table = self._block_tables[group]
        self._tables = None
        first = self._num_blocks[group][row]
        last = first + len(block_ids)
        if last > table.shape[1]:  # a longer table than max_model_len asks for: lookahead of a scheduler
            wider = np.full((len(table), max(last, 2 * table.shape[1])), NULL_BLOCK, np.int64)
            wider[:, : table.shape[1]] = table
            self._block_tables[group] = table = wider
        table[row, first:last] = block_ids
        self._num_blocks[group][row] = last

    # ------------------------------------------------------------ the batch

    def build(self, plan: ExecutionPlan) -> ModelInputs:
        """Flatten a plan that was applied. It must schedule at least one token.

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
                groups=self._groups(rows, np.repeat(rows, counts), positions),
                block_size=self.block_size,
            ),
            logits_indices=self._tensor((ends - 1)[samples]),
            sampling_ids=tuple([s.request_id for s in drawing]),
            sampling=self._sampling_metadata(rows[samples], [s.output_index for s in drawing]),
        )

    def _build_singles(self, scheduled: Sequence[ScheduledRequest]) -> ModelInputs:
        """The same for one token each: request, token and, if all draw, draw are counted alike."""
        ids = tuple([s.request_id for s in scheduled])
        rows = self._rows(ids)  # (R,)
        starts = [s.start for s in scheduled]
        positions = np.array(starts)
        drawing = [index for index, s in enumerate(scheduled) if s.samples]
        all_draw = len(drawing) == len(ids)
        return ModelInputs(
            token_ids=self._tensor(np.array([s.new_token_ids[0] for s in scheduled])),
            attention=AttentionMetadata(
                query_lens=(1,) * len(ids),
                context_lens=tuple(starts),
                num_decodes=len(ids),
                positions=self._tensor(positions),
                groups=self._groups(rows, rows, positions),
                block_size=self.block_size,
            ),
            logits_indices=None if all_draw else self._tensor(np.array(drawing, np.int64)),
            sampling_ids=ids if all_draw else tuple([ids[index] for index in drawing]),
            sampling=self._sampling_metadata(
                rows if all_draw else rows[drawing], [scheduled[index].output_index for index in drawing]
            ),
        )

    def _rows(self, ids: tuple[str, ...]) -> np.ndarray:
        """(R,) the rows of these requests; the same array as long as they are the same."""
        if self._rows_of_ids[0] != ids:
            self._rows_of_ids = (ids, np.array([self._row_of[request_id] for request_id in ids]))
        return self._rows_of_ids[1]

    def _groups(
        self, rows: np.ndarray, row_of_token: np.ndarray, positions: np.ndarray
    ) -> tuple[GroupMetadata, ...]:
        """Of (R,) ``rows``, and of T tokens in ``row_of_token`` at ``positions``."""
        block_index, offset = np.divmod(positions, self.block_size)  # (T,), (T,)
        slots = []
        for group, table in enumerate(self._block_tables):
            # Behind a row's blocks, and nowhere else where tokens are written, there is the null block.
            if (
                block_index.max() >= table.shape[1]
                or not (
                    block_ids := table[row_of_token, block_index]  # (T,)
                ).all()
            ):
                raise self._too_few_blocks(group, row_of_token, positions)
            slots.append(self._tensor(block_ids * self.block_size + offset))
        tables = self._tables_of(rows, int(block_index.max()) + 1)
        return tuple(map(GroupMetadata, tables, slots))

    def _tables_of(self, rows: np.ndarray, width: int) -> tuple[torch.Tensor, ...]:
        """Per group (R, width); the same tensors until one of the rows gets a block."""
        known = self._tables
        if known is None or known[0] is not rows or known[1] != width:
            tables = tuple([self._tensor(table[rows, :width]) for table in self._block_tables])
            self._tables = known = (rows, width, tables)
        return known[2]

    def _too_few_blocks(self, group: int, row_of_token: np.ndarray, positions: np.ndarray) -> IntegrityError:
        num_blocks = np.array(self._num_blocks[group])[row_of_token]
        token = int(np.flatnonzero(positions // self.block_size >= num_blocks)[0])
        row = int(row_of_token[token])
        num_tokens = int(positions[row_of_token == row].max()) + 1
        request_id = next(name for name, its_row in self._row_of.items() if its_row == row)
        return IntegrityError(
            f"request {request_id!r} has {num_blocks[token]} blocks in group {group}, but its "
            f"{num_tokens} tokens need {-(-num_tokens // self.block_size)}."
        )

    def _sampling_metadata(self, rows: np.ndarray, output_index: Sequence[int]) -> SamplingMetadata:
        """Of the (N,) rows that draw; the same settings as long as these are the same."""
        known = self._settings
        if known is None or (known[0] is not rows and not np.array_equal(known[0], rows)):
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
        return SamplingMetadata(known[1], np.array(output_index, np.int64), constrained)

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._is_on_cpu else tensor.to(self.device)


def _has_many_tokens(scheduled: ScheduledRequest) -> bool:
    return scheduled.count > 1
