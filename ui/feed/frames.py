"""Versions of figures: each is made once for all who look at the same, and sent as what changed since the last one."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from operator import ne
from typing import Any

import orjson

from ui.charts.focus import Figure

SHORTEST_WINDOW = 12
MOST_MOVED = 33
"""Steps between two frames, and more."""
PATCHES_KEPT = 6
"""A tab that has missed fewer versions than that gets what changed, others the whole figure."""


@dataclass(slots=True)
class _Frame:
    """The newest version of one figure."""

    version: int
    stamp: Hashable
    """What it shows: equal stamps, equal figures."""
    figure: Figure
    full: bytes = b""
    """Made when somebody asks for it."""
    patches: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=PATCHES_KEPT))
    """(version it starts from, inside of its JSON list), oldest first; each leads to the next."""


class Frames:
    """At most ``capacity`` figures, the least recently asked for go first. Not safe for threads: its owner locks."""

    def __init__(self, name: str, capacity: int) -> None:
        self._name = name
        """Part of every version, and unlike that of another start of the page."""
        self._capacity = capacity
        self._frames: OrderedDict[Hashable, _Frame] = OrderedDict()
        self._num_versions = 0
        self.num_drawn = 0

    def __len__(self) -> int:
        return len(self._frames)

    def is_fresh(self, key: Hashable, stamp: Hashable) -> bool:
        frame = self._frames.get(key)
        return frame is not None and frame.stamp == stamp

    def answer(self, key: Hashable, stamp: Hashable, draw: Callable[[], Figure], version: str) -> bytes:
        """JSON that leads from ``version`` to the figure of ``stamp``; b"" where nothing changed.

        ``{"version", "full": figure}`` or ``{"version", "patch": [[path, value], ...]}``.
        """
        frame = self._frames.get(key)
        if frame is None or frame.stamp != stamp:
            frame = self._draw(key, frame, stamp, draw)
        self._frames.move_to_end(key)
        held = self._number(version)
        if held == frame.version:
            return b""
        head = b'{"version":"%s-%d",' % (self._name.encode(), frame.version)
        patch = self._patch_from(frame, held)
        if patch is not None:
            return head + b'"patch":[' + patch + b"]}"
        if not frame.full:
            frame.full = orjson.dumps(frame.figure, option=orjson.OPT_SERIALIZE_NUMPY)
        return head + b'"full":' + frame.full + b"}"

    def _draw(
        self, key: Hashable, frame: _Frame | None, stamp: Hashable, draw: Callable[[], Figure]
    ) -> _Frame:
        figure = draw()
        self.num_drawn += 1
        if frame is None:
            self._num_versions += 1
            frame = self._frames[key] = _Frame(self._num_versions, stamp, figure)
            while len(self._frames) > self._capacity:
                self._frames.popitem(last=False)
            return frame
        changed = changes(frame.figure, figure)
        frame.stamp = stamp
        if changed:
            self._num_versions += 1
            frame.patches.append(
                (frame.version, orjson.dumps(changed, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1])
            )
            frame.version, frame.figure, frame.full = self._num_versions, figure, b""
        return frame

    def _patch_from(self, frame: _Frame, held: int | None) -> bytes | None:
        """All changes since version ``held``, one after the other; None where they are not known any more."""
        versions = [version for version, _ in frame.patches]
        if held not in versions:
            return None
        return b",".join(patch for _, patch in list(frame.patches)[versions.index(held) :])

    def _number(self, version: str) -> int | None:
        name, _, number = version.rpartition("-")
        return int(number) if name == self._name and number.isdecimal() and len(number) < 16 else None


def changes(old: Any, new: Any) -> list[list[Any]]:
    """[[path, value], ...] that turns ``old`` into ``new``; a path is a list of keys and indices.

    ``[path, tail, start, keep]``: of the list there ``keep`` values from ``start`` on stay, and ``tail`` follows them:
    what windows over the newest steps do. Other lists that are mostly changed are sent whole.
    """
    found: list[list[Any]] = []
    if old != new:
        _compare(old, new, [], found, [0])
    return found


def _compare(old: Any, new: Any, path: list[Any], found: list[list[Any]], moves: list[int]) -> None:
    """``old`` and ``new`` differ. Equal parts are skipped by one comparison each, which Python makes in C.

    ``moves``: how far the last window had moved on, since all windows of a figure do so together.
    """
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for key, value in new.items():
            before = old[key]
            if before is not value and before != value:
                _compare(before, value, [*path, key], found, moves)
        return
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        is_flat = not new or not isinstance(new[0], dict | list | tuple)
        if is_flat and moves[0] and _has_moved_on(old, new, path, found, moves, moves[:1]):
            return
        if len(old) == len(new) > 0:
            differing = [i for i, differs in enumerate(map(ne, old, new)) if differs]
            if not is_flat:
                for i in differing:
                    _compare(old[i], new[i], [*path, i], found, moves)
                return
            if len(differing) * 3 < len(new):
                found.extend([[*path, i], new[i]] for i in differing)
                return
        if _has_moved_on(old, new, path, found, moves, range(MOST_MOVED)):
            return
    found.append([path, new])


def _has_moved_on(
    old: Any, new: Any, path: list[Any], found: list[list[Any]], moves: list[int], starts: Iterable[int]
) -> bool:
    """Notes the change if ``new`` begins with ``old[start : start + keep]``, where that is most of it."""
    size = len(new)
    least = size * 2 // 3 + 1  # the newest values are still changing
    if size < SHORTEST_WINDOW:
        return False
    for start in starts:
        if len(old) - start < least:
            break
        if old[start] != new[0] or old[start : start + least] != new[:least]:
            continue
        keep, most = least, min(len(old) - start, size)
        while keep < most:
            middle = (keep + most + 1) // 2
            if old[start + keep : start + middle] == new[keep:middle]:
                keep = middle
            else:
                most = middle - 1
        moves[0] = start
        found.append([path, new[keep:], start, keep])
        return True
    return False
