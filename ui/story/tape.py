"""The events of one engine that are held, with keyframes among them, and what must be found quickly.

Events are folded once as they come, into the newest story; every so many events a copy of it is kept, a keyframe. Any
step is then a copy of a keyframe and at most ``distance`` events away.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from micro_vllm.errors import TraceLawError
from micro_vllm.trace import (
    BlockCached,
    BlockEvicted,
    BlocksAllocated,
    EngineStarted,
    PrefixLookup,
    RequestAborted,
    RequestFinished,
    RequestPreempted,
    RequestQueued,
    Snapshot,
    StepExecuted,
    StepFailed,
    StepPlanned,
    TokensSampled,
    TraceEvent,
)
from ui.story import Story
from ui.view import JUMP_KINDS, Clock, JumpKind

MIN_KEYFRAME_DISTANCE = 1_000
"""Events between two keyframes: folding so many takes about 10 ms, and 200,000 events have 200 keyframes."""
_EVERY_STEP = frozenset((StepPlanned, StepExecuted, TokensSampled, BlockCached, BlocksAllocated))
"""Most events are of these kinds. They are no marks, and no request begins or ends with them."""
LIVES_KEPT = 10_000
"""Requests whose number is known after the window has forgotten them."""


def keyframe_distance(num_blocks: int) -> int:
    """A keyframe of a large pool is large: fewer of them, so that all take little more memory than their events do.

    At 4,096 blocks 3,072 events are 80 ms at the most, and the keyframes of 100,000 events 46 MB.
    """
    return max(MIN_KEYFRAME_DISTANCE, num_blocks * 3 // 4)


@dataclass(slots=True)
class Life:
    """Where in the trace a request is spoken of."""

    arrival: int
    first_seq: int
    last_seq: int | None = None


class Tape:
    """Begins with an EngineStarted or a Snapshot; ``append`` passes over what comes before it.

    Invariants: ``seq`` is gapless and ``step`` never falls. ``keyframes[0]`` holds ``events[0]`` and nothing after it,
    so that each step from there on can be reached. ``events`` and ``keyframes`` are only ever appended to or replaced,
    and a keyframe is never changed: whoever took a ``Reel`` may read on while the tape grows.
    """

    def __init__(self, distance: int | None = None) -> None:
        self.events: list[TraceEvent] = []
        self.newest = Story()
        self.lives: dict[str, Life] = {}
        self._distance = distance
        self._keyframes: list[Story] = []
        self._marks: dict[JumpKind, list[int]] = {kind: [] for kind in JUMP_KINDS}
        self._seqs: defaultdict[str, list[int]] = defaultdict(list)
        """By kind of event, ascending."""
        self._next_keyframe = -1
        """The first event of which one is due."""

    # ------------------------------------------------------------ growing

    def append(self, event: TraceEvent) -> None:
        """Raises TraceLawError, KeyError, IndexError or ValueError for one that does not fit; it is not taken then,
        but the newest story may hold a part of it."""
        if not self.events and not isinstance(event, EngineStarted | Snapshot):
            return
        if self.events and event.step < self.events[-1].step:
            raise TraceLawError(f"step {event.step} follows step {self.events[-1].step}")
        self.newest.apply(event)
        self.events.append(event)
        self._note(event)
        if event.seq >= self._next_keyframe:
            info = self.newest.fold.info
            assert info is not None
            self._keyframes.append(self.newest.copy())
            self._next_keyframe = event.seq + (self._distance or keyframe_distance(info.num_blocks))

    def _note(self, event: TraceEvent) -> None:
        self._seqs[event.kind].append(event.seq)
        if type(event) in _EVERY_STEP:
            return
        kind = _jump_kind(event)
        if kind is not None:
            steps = self._marks[kind]
            if not steps or steps[-1] != event.step:
                steps.append(event.step)
        match event:
            case RequestQueued():
                earlier = self.lives.pop(event.request_id, None)  # an id may be used again
                first = earlier.first_seq if earlier else event.seq
                self.lives[event.request_id] = Life(event.arrival, first)
                if len(self.lives) > LIVES_KEPT:
                    del self.lives[next(iter(self.lives))]
            case RequestFinished() | RequestAborted():
                if event.request_id in self.lives:
                    self.lives[event.request_id].last_seq = event.seq
            case Snapshot():
                for request_id, request in event.state.requests.items():
                    self.lives.setdefault(request_id, Life(request.arrival, event.seq))
            case _:
                pass

    def forget_before(self, event: TraceEvent) -> None:
        """Begin with ``event``, of this tape; what came before it can no longer be reached."""
        reel = self.reel()
        first = reel.base(event.seq).copy()
        reel.play(first, event.seq)
        self.events = self.events[event.seq - self.events[0].seq :]
        self._keyframes = [first, *(story for story in self._keyframes if last_seq(story) > event.seq)]
        for steps in self._marks.values():
            del steps[: bisect_left(steps, event.step)]
        for seqs in self._seqs.values():
            del seqs[: bisect_left(seqs, event.seq)]

    # ------------------------------------------------------------ reading

    @property
    def last_step(self) -> int:
        """The newest step that was planned."""
        return self.newest.fold.step

    @property
    def first_step(self) -> int:
        """Not step 0, once there is a step: an engine that has not computed anything is nothing to look at."""
        return min(max(self.events[0].step, 1), self.last_step)

    def clock(self) -> Clock:
        # What happens while a step is being planned carries its number already.
        first, last = self.first_step, self.last_step
        marks = {k: tuple(s[bisect_left(s, first) : bisect_right(s, last)]) for k, s in self._marks.items()}
        return Clock(first, last, marks)

    def find(self, kinds: frozenset[str], start: int, stop: int) -> Iterator[int]:
        """Numbers of the events of these kinds with ``start <= seq < stop``, newest first."""
        runs = [self._seqs[kind] for kind in kinds if kind in self._seqs]
        cuts = [seqs[bisect_left(seqs, start) : bisect_left(seqs, stop)] for seqs in runs]
        return heapq.merge(*map(reversed, cuts), reverse=True)

    def reel(self) -> Reel:
        return Reel(self.events, self._keyframes)

    def seq_after(self, step: int) -> int:
        """The last event of ``step``, or of the newest step before it that has any."""
        return self.events[max(num_until(self.events, step), 1) - 1].seq


@dataclass(frozen=True, slots=True)
class Reel:
    """What a tape held at one moment, to be read without its lock."""

    events: list[TraceEvent]
    keyframes: list[Story]

    def base(self, seq: int) -> Story:
        """The last keyframe that holds nothing after event ``seq``. Copy it before you play on."""
        return self.keyframes[bisect_right(self.keyframes, seq, key=last_seq) - 1]

    def play(self, story: Story, seq: int) -> int:
        """Go on with ``story`` up to event ``seq``. Returns how many events that were."""
        first = self.events[0].seq
        start = last_seq(story) + 1
        for index in range(start - first, seq + 1 - first):
            story.apply(self.events[index])
        return seq + 1 - start


def last_seq(story: Story) -> int:
    """Of a story that has begun."""
    assert story.fold.last_seq is not None
    return story.fold.last_seq


def num_until(events: list[TraceEvent], step: int) -> int:
    """How many events carry ``step`` or an earlier one."""
    return bisect_right(events, step, key=_step)


def _step(event: TraceEvent) -> int:
    return event.step


def _jump_kind(event: TraceEvent) -> JumpKind | None:
    match event:
        case BlockEvicted():
            return "evicted"
        case PrefixLookup() if event.num_hit_tokens:
            return "hit"
        case RequestPreempted():
            return "preempted"
        case StepFailed():
            return "failed"
        case RequestFinished() if event.reason == "error":
            return "failed"
        case _:
            return None


def requests_of(event: TraceEvent) -> tuple[str, ...]:
    """Ids of the requests that an event speaks of."""
    match event:
        case StepPlanned():
            return tuple(row.request_id for row in event.rows)
        case TokensSampled():
            return tuple(token.request_id for token in event.tokens)
        case StepFailed():
            return event.request_ids
        case RequestPreempted():
            return (event.request_id, event.beneficiary)
        case _:
            request_id = getattr(event, "request_id", None)
            return () if request_id is None else (request_id,)
