"""What drawing may cost: processor time is counted, and views come less often where they cost more.

Charts and engine share the processor and Python's lock. So the time that views, figures and patches take is a debt
that fades at the rate of the share they may have; a new view has to wait until it has faded.
"""

from __future__ import annotations

import threading
import time
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

    def wait(self, *, is_busy: bool, allowance: float = 0.0) -> float:
        """Seconds until no more than ``allowance`` is owed; 0: draw now."""
        with self._lock:
            share = BUSY_SHARE if is_busy else IDLE_SHARE
            now = self._clock()
            self._debt = max(0.0, self._debt - (now - self._at) * share)
            self._at = now
            return min(max(0.0, self._debt - allowance) / share, LONGEST_WAIT)
