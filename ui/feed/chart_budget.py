"""What drawing may cost: processor time is counted, and views come less often where they cost more.

Charts and engine share the processor and Python's lock. So the time that views, figures and patches take is a debt
that fades at the rate of the share they may have. Views of the engine come as regularly as that allows: one after
the time in which what a view usually costs fades, and later where more than that is owed. Whatever is not shown at
once waits for the next view, longest where views are unevenly far apart.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

BUSY_SHARE = 0.047
"""Of one core, while the engine computes."""
IDLE_SHARE = 0.3
"""While it does not: walking through a trace then takes nothing from anybody."""
LONGEST_WAIT = 1.0
"""Seconds: one frame a second there is always."""
BURST = 0.1
"""Seconds of processor time that may be owed before those who look at a step of their own have to wait."""
USUAL_FRAMES = 16
"""The last so many frames tell what one costs."""


class ChartBudget:
    """Safe to use from any thread. ``clock`` and ``cpu_clock`` are for tests."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._lock = threading.Lock()
        self._debt = 0.0
        self._at = clock()
        self._frame_at = self._at
        self._spent_before = 0.0
        self._costs: deque[float] = deque(maxlen=USUAL_FRAMES)
        self._usual = 0.0
        self.cpu_seconds = 0.0
        """All that was spent so far."""

    @contextmanager
    def measured(self) -> Iterator[None]:
        """What happens inside, on this thread, is spent."""
        begun = self._cpu_clock()
        try:
            yield
        finally:
            self.spend(self._cpu_clock() - begun)

    def spend(self, seconds: float) -> None:
        with self._lock:
            self.cpu_seconds += seconds
            # No more is owed than fades within the longest wait: a slow chart must not stop all charts for long.
            self._debt = min(self._debt + seconds, BURST + BUSY_SHARE * LONGEST_WAIT)

    def note_frame(self) -> None:
        """A new view of the engine was made; figures of it follow."""
        with self._lock:
            now = self._clock()
            # After a pause, what was spent meanwhile was no frame's cost.
            if now - self._frame_at < 2 * LONGEST_WAIT:
                self._costs.append(self.cpu_seconds - self._spent_before)
            self._frame_at, self._spent_before = now, self.cpu_seconds
            # The first figures are whole and cost ten times as much: the largest says nothing of the next.
            usual = sorted(self._costs)[:-1] or self._costs
            self._usual = sum(usual) / len(usual) if usual else 0.0

    def wait_for_frame(self, *, is_busy: bool) -> float:
        """Seconds until the next view of the engine; 0: now."""
        owed = self.wait(is_busy=is_busy, allowance=self._usual)
        since = self._clock() - self._frame_at
        return max(owed, min(self._usual / _share(is_busy), LONGEST_WAIT) - since, 0.0)

    def wait(self, *, is_busy: bool, allowance: float = 0.0) -> float:
        """Seconds until no more than ``allowance`` is owed; 0: draw now."""
        with self._lock:
            share = _share(is_busy)
            now = self._clock()
            self._debt = max(0.0, self._debt - (now - self._at) * share)
            self._at = now
            return min(max(0.0, self._debt - allowance) / share, LONGEST_WAIT)


def _share(is_busy: bool) -> float:
    return BUSY_SHARE if is_busy else IDLE_SHARE
