"""Time travel: follows a trace, live or from a file, and shows the engine after any step that is still held."""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable

from micro_vllm.errors import TraceFileError, TraceLawError
from micro_vllm.trace import EngineStarted, TraceEvent
from ui.story import Story
from ui.story.event_list import EventList, EventSource
from ui.story.tape import Tape, last_seq, num_until, requests_of
from ui.view import Clock, EngineView, JumpKind

__all__ = ["EventList", "EventSource", "Replay", "requests_of"]

_VIEWS_KEPT = 8


class Replay:
    """Any thread may ask. Whatever is asked catches up with the source first.

    Args:
        source: a TraceLog or an EventList; ``follow`` may give it later.
        is_sample: the views say that they are of the recorded sample.
        title: what is replayed, as the page calls it.
        keyframe_events: events between two keyframes; by default it depends on the pool.

    Raises TraceFileError for an EventList whose events do not fit together.
    """

    def __init__(
        self,
        source: EventSource | None = None,
        *,
        is_sample: bool = False,
        title: str = "",
        keyframe_events: int | None = None,
    ) -> None:
        self.is_sample = is_sample
        self.title = title
        self.num_folded = 0
        """Events folded again for past steps: what time travel has cost."""
        self._source = source
        self._keyframe_events = keyframe_events
        self._lock = threading.Lock()
        self._tape = Tape(keyframe_events)
        self._clock: Clock | None = None
        self._travel = _Travel()
        if source is not None:
            with self._lock:
                self._catch_up()

    # ------------------------------------------------------------ feeding

    def follow(self, source: EventSource) -> EngineView | None:
        """Catch up with ``source``; the newest view, or None while it has not even started."""
        with self._lock:
            if source is not self._source:
                self._source = source
                self._change_tape()
            self._catch_up()
            return self._tape.newest.view(is_sample=self.is_sample)

    def apply(self, events: Iterable[TraceEvent]) -> None:
        """Feed events by hand, in order."""
        with self._lock:
            for event in events:
                self._take(event)

    def _catch_up(self) -> None:
        ends = self._source.ends() if self._source is not None else None
        if self._source is None or ends is None:
            return
        held = self._tape.events
        if held and held[-1].engine == ends[1].engine:
            seq = held[-1].seq
            events = self._source.since(seq)
            if events and events[0].seq != seq + 1:
                # Events were dropped while nobody looked: go on from the Snapshot that comes first now.
                self._change_tape(self._tape.lives)
        else:  # the first events, or another engine writes here now, and numbers its events anew
            self._change_tape()
            events = [event for event in self._source.since() if event.engine == ends[1].engine]
        for event in events:
            self._take(event)
        held = self._tape.events
        if held:
            index = ends[0].seq - held[0].seq
            if 0 < index < len(held) and held[index] is ends[0]:
                self._tape.forget_before(ends[0])
                self._clock = None

    def _take(self, event: TraceEvent) -> None:
        if isinstance(event, EngineStarted) and self._tape.events:
            self._change_tape()
        try:
            self._tape.append(event)
        except (LookupError, ValueError, TraceLawError) as error:
            raise self._misfit(event, error) from error
        self._clock = None

    def _change_tape(self, lives: dict | None = None) -> None:
        self._tape = Tape(self._keyframe_events)
        self._tape.lives = lives or {}
        self._clock = None

    def _misfit(self, event: TraceEvent, error: Exception) -> Exception:
        is_law = isinstance(error, TraceLawError)
        reason = str(error) if is_law else f"it speaks of something that is not there ({error})"
        story = f"{self.title or 'the trace'}: event {event.seq} ({event.kind}, step {event.step})"
        words = f"{story} does not fit what came before it: {reason}."
        if isinstance(self._source, EventList):
            return TraceFileError(f"{words} The file was cut or changed; save the trace again.")
        return TraceLawError(words)

    # ------------------------------------------------------------ reading

    @property
    def has_steps(self) -> bool:
        """Whether the engine has computed anything yet, as far as was followed."""
        return self._tape.newest.executed_step > 0

    def arrival_of(self, request_id: str) -> int | None:
        """Number of a request: its label and colour follow from it. Known of the newest 10,000 requests."""
        with self._lock:
            if request_id not in self._tape.lives:
                self._catch_up()
            life = self._tape.lives.get(request_id)
            return life.arrival if life else None

    def clock(self) -> Clock | None:
        """The steps that can be reached; None before the engine started."""
        with self._lock:
            self._catch_up()
            if self._clock is None and self._tape.events:
                self._clock = self._tape.clock()
            return self._clock

    def jump(self, kind: JumpKind, step: int, direction: int) -> int | None:
        """The nearest step after (``direction`` 1) or before (-1) ``step`` where this happened."""
        clock = self.clock()
        steps = clock.marks[kind] if clock else ()
        index = bisect_right(steps, step) if direction > 0 else bisect_left(steps, step) - 1
        return steps[index] if 0 <= index < len(steps) else None

    def view(self, step: int | None = None) -> EngineView | None:
        """The state after ``step``: all events that carry it or an earlier one; None: after the newest event.

        For a step that is not held, the nearest one that is. None before the first EngineStarted or Snapshot.
        """
        with self._lock:
            self._catch_up()
            tape = self._tape
            if step is None or not tape.events:
                return tape.newest.view(is_sample=self.is_sample)
            seq = tape.seq_after(min(max(step, tape.first_step), tape.last_step))
            if seq == tape.events[-1].seq:
                return tape.newest.view(is_sample=self.is_sample)
            reel = tape.reel()
        travel = self._travel
        with travel.lock:  # not the lock above: nobody who follows waits for someone who travels
            if travel.tape is not tape:
                travel.start(tape)
            if seq in travel.views:
                travel.views.move_to_end(seq)
                return travel.views[seq]
            story, base = travel.story, reel.base(seq)
            if story is None or not last_seq(base) <= last_seq(story) <= seq:
                story = travel.story = base.copy()  # else walk on from where the last traveller stands
            self.num_folded += reel.play(story, seq)
            view = story.view(is_sample=self.is_sample)
            assert view is not None
            travel.keep(seq, view)
            return view

    def events(
        self,
        *,
        until: int | None = None,
        kinds: frozenset[str] | None = None,
        request_id: str | None = None,
        limit: int = 200,
    ) -> list[TraceEvent]:
        """Newest first: events up to step ``until``, of these kinds, that speak of this request.

        They are as the engine told them: token ids are for their owner's eyes only.
        """
        with self._lock:
            self._catch_up()
            tape = self._tape
            events = tape.events
            if not events:
                return []
            first = events[0].seq
            start, stop = first, first + (len(events) if until is None else num_until(events, until))
            life = tape.lives.get(request_id) if request_id is not None else None
            if life is not None:
                start = max(start, life.first_seq)
                stop = stop if life.last_seq is None else min(stop, life.last_seq + 1)
            seqs: Iterable[int] = range(stop - 1, start - 1, -1)
            if kinds is not None:
                seqs = tape.find(kinds, start, stop)
        found = (events[seq - first] for seq in seqs)
        if request_id is not None:
            found = (event for event in found if request_id in requests_of(event))
        return list(itertools.islice(found, max(0, limit)))


class _Travel:
    """Where the last traveller stands, and the views seen on the way."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.start(None)

    def start(self, tape: Tape | None) -> None:
        """Another tape: nothing of the old one holds."""
        self.tape = tape
        self.story: Story | None = None
        self.views: OrderedDict[int, EngineView] = OrderedDict()
        """By the last event they hold."""

    def keep(self, seq: int, view: EngineView) -> None:
        self.views[seq] = view
        while len(self.views) > _VIEWS_KEPT:
            self.views.popitem(last=False)
