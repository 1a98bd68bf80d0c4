"""One row per live request, and the flattened batch of a step built from the rows.

A plan brings only what is new, so a step costs O(new tokens + scheduled requests): a row keeps the block
tables, the sampling settings and the counts that came before. Rows are reused, never moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from micro_vllm.attention.metadata import AttentionMetadata, GroupMetadata
from micro_vllm.config import NULL_BLOCK
from micro_vllm.core.scheduler_output import ExecutionPlan, NewRequest, ScheduledRequest
from micro_vllm.errors import IntegrityError
from micro_vllm.sampling.constraints import ConstrainedRow, LogitConstraints
from micro_vllm.sampling.sampler import NO_LOGPROBS, SamplingMetadata


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """One step's batch: R requests, those with a single token first; T tokens; N of the requests draw one."""

    token_ids: torch.Tensor
    """(T,) int64"""
    attention: AttentionMetadata
    logits_indices: torch.Tensor
    """(N,) int64, index among the T of the last token of every request that draws"""
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
        self._num_blocks = np.zeros((num_groups, max_num_seqs), np.int64)
        self._num_known = np.zeros(max_num_seqs, np.int64)  # tokens the row's constraints have seen
        self._temperature = np.zeros(max_num_seqs, np.float64)
        self._top_k = np.zeros(max_num_seqs, np.int64)
        self._top_p = np.ones(max_num_seqs, np.float64)
        self._min_p = np.zeros(max_num_seqs, np.float64)
        self._seeds = np.zeros(max_num_seqs, np.int64)
        self._num_logprobs = np.full(max_num_seqs, NO_LOGPROBS, np.int64)
        self._constraints: dict[int, LogitConstraints] = {}  # rows that have any

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
            row = self._row(scheduled.request_id)
            for group, block_ids in enumerate(scheduled.new_block_ids):
                if block_ids:
                    self._append_blocks(group, row, block_ids)
            end = scheduled.start + scheduled.count
            if end > self._num_known[row]:
                if row in self._constraints:
                    unseen = int(self._num_known[row]) - scheduled.start
                    self._constraints[row].append_outputs(scheduled.new_token_ids[unseen:])
                self._num_known[row] = end

    def _row(self, request_id: str) -> int:
        row = self._row_of.get(request_id)
        if row is None:
            raise IntegrityError(f"request {request_id!r} is scheduled, but the runner was never told of it.")
        return row

    def _add(self, request: NewRequest) -> None:
        if not self._free_rows:
            raise IntegrityError(
                f"request {request.request_id!r} is one more than the max_num_seqs={self._max_num_seqs} rows."
            )
        row = self._free_rows.pop()
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
        for table, num_blocks in zip(self._block_tables, self._num_blocks, strict=True):
            table[row, : num_blocks[row]] = NULL_BLOCK
            num_blocks[row] = 0
        self._constraints.pop(row, None)
        self._free_rows.append(row)

    def _append_blocks(self, group: int, row: int, block_ids: tuple[int, ...]) -> None:
        table = self._block_tables[group]
        first = int(self._num_blocks[group, row])
        last = first + len(block_ids)
        if last > table.shape[1]:  # a longer table than max_model_len asks for: lookahead of a scheduler
            wider = np.full((len(table), max(last, 2 * table.shape[1])), NULL_BLOCK, np.int64)
            wider[:, : table.shape[1]] = table
            self._block_tables[group] = table = wider
        table[row, first:last] = block_ids
        self._num_blocks[group, row] = last

    # ------------------------------------------------------------ the batch

    def build(self, plan: ExecutionPlan) -> ModelInputs:
        """Flatten a plan that was applied. It must schedule at least one token.

        Raises:
            IntegrityError: a token's place is past the end of its request's block table.
        """
        # Single tokens first: attention treats decodes as one batched call.
        ordered = sorted(plan.scheduled, key=_has_many_tokens)  # stable
        num_decodes = len(ordered) - sum(map(_has_many_tokens, ordered))
        num_requests, num_tokens = len(ordered), plan.num_tokens
        rows = np.fromiter((self._row_of[s.request_id] for s in ordered), np.int64, num_requests)  # (R,)
        starts = np.fromiter((s.start for s in ordered), np.int64, num_requests)
        counts = np.fromiter((s.count for s in ordered), np.int64, num_requests)
        tokens = chain.from_iterable(s.new_token_ids for s in ordered)
        token_ids = np.fromiter(tokens, np.int64, num_tokens)  # (T,)
        ends = counts.cumsum()
        # Within a request positions run from its start: subtract where the request begins in the batch.
        positions = np.arange(num_tokens) + np.repeat(starts - (ends - counts), counts)  # (T,)
        groups = self._group_metadata(rows, starts + counts, counts, positions)
        samples = np.fromiter((s.samples for s in ordered), np.bool_, num_requests)
        output_index = np.fromiter((s.output_index for s in ordered if s.samples), np.int64)  # (N,)
        return ModelInputs(
            token_ids=self._tensor(token_ids),
            attention=AttentionMetadata(
                query_lens=tuple(counts.tolist()),
                context_lens=tuple(starts.tolist()),
                num_decodes=num_decodes,
                positions=self._tensor(positions),
                groups=groups,
                block_size=self.block_size,
            ),
            logits_indices=self._tensor((ends - 1)[samples]),
            sampling_ids=tuple(s.request_id for s in ordered if s.samples),
            sampling=self._sampling_metadata(rows[samples], output_index),
        )

    def _group_metadata(
        self, rows: np.ndarray, seq_lens: np.ndarray, counts: np.ndarray, positions: np.ndarray
    ) -> tuple[GroupMetadata, ...]:
        num_needed = -(-seq_lens // self.block_size)  # (R,)
        block_index, offset = np.divmod(positions, self.block_size)  # (T,), (T,)
        row_of_token = np.repeat(rows, counts)  # (T,)
        groups = []
        for group, (table, num_blocks) in enumerate(zip(self._block_tables, self._num_blocks, strict=True)):
            short = num_needed > num_blocks[rows]
            if short.any():
                row = int(rows[short][0])
                request_id = next(name for name, its_row in self._row_of.items() if its_row == row)
                raise IntegrityError(
                    f"request {request_id!r} has {num_blocks[row]} blocks in group {group}, but its "
                    f"{seq_lens[short][0]} tokens need {num_needed[short][0]}."
                )
            slots = table[row_of_token, block_index] * self.block_size + offset  # (T,)
            tables = table[rows, : num_needed.max()]  # (R, most blocks)
            groups.append(GroupMetadata(self._tensor(tables), self._tensor(slots)))
        return tuple(groups)

    def _sampling_metadata(self, rows: np.ndarray, output_index: np.ndarray) -> SamplingMetadata:
        constrained = [
            ConstrainedRow(place, self._constraints[row])
            for place, row in enumerate(rows.tolist() if self._constraints else ())
            if row in self._constraints
        ]
        return SamplingMetadata(
            temperature=self._temperature[rows],
            top_k=self._top_k[rows],
            top_p=self._top_p[rows],
            min_p=self._min_p[rows],
            seeds=self._seeds[rows],
            output_index=output_index,
            num_logprobs=self._num_logprobs[rows],
            constrained=constrained,
        )

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)


def _has_many_tokens(scheduled: ScheduledRequest) -> bool:
    return scheduled.count > 1
