"""The hover of the KV block map: short lines, that fit beside a cell on a phone. Ids and counts, nobody's text."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from ui.charts.block_follow import Followed
from ui.view import BlockCell, EngineView

_FATES = {
    "held": "",
    "kept": "given back; still has its tokens, for reuse",
    "unclear": "given back; may still have its tokens",
    "given": "given away since: other tokens are in it",
    "lost": "given back; its tokens cannot be found again",
}


def describe(
    cell: BlockCell, view: EngineView, labels: Mapping[str, str], followed: Followed | None = None
) -> str:
    """Lines about one cell. ``labels``: request id -> letter."""
    is_used = cell.state == "used"
    words = _in_use(cell, view, labels) if is_used else _of_nobody(cell, view.info.block_size)
    if followed is None:
        return words
    return "<br>".join([*_followed_lines(cell.block_id, view, followed), words])


@lru_cache(maxsize=8192)
def _of_nobody(cell: BlockCell, block_size: int) -> str:
    """Most of a pool stays as it is from one step to the next."""
    lines = [f"<b>block {cell.block_id}</b> · free"]
    if cell.state == "cached":
        lines = [
            f"<b>block {cell.block_id}</b> · kept for reuse, evictable",
            f"{cell.tokens} of {block_size} slots filled · 0 references",
        ]
    return "<br>".join([*lines, *_traces_left(cell.hashes, cell.is_written)])


def _in_use(cell: BlockCell, view: EngineView, labels: Mapping[str, str]) -> str:
    letters = [labels[o.request_id] for o in cell.owners if o.request_id in labels]
    names = ", ".join(letters[:8]) + (" …" if len(letters) > 8 else "")
    what = f"shared by {cell.ref_count}: {names}" if cell.ref_count > 1 else f"in use by {names or '?'}"
    references = "1 reference" if cell.ref_count == 1 else f"{cell.ref_count} references"
    return "<br>".join(
        [
            f"<b>block {cell.block_id}</b> · {what}",
            *(_place(view, *one) for one in dict.fromkeys((o.group, o.logical_index) for o in cell.owners)),
            f"{cell.tokens} of {view.info.block_size} slots filled · {references}",
            *_traces_left(cell.hashes, cell.is_written),
        ]
    )


def _traces_left(hashes: tuple[str, ...], is_written: bool) -> list[str]:
    shown = ["hash " + ", ".join([key.partition(":")[2][:8] for key in hashes[:3]])] if hashes else []
    return [*shown, "written in this step"] if is_written else shown


def _followed_lines(block_id: int, view: EngineView, followed: Followed) -> list[str]:
    """First what the viewer asked about: logical -> physical, and the token they point at."""
    entry = followed.blocks.get(block_id)
    if entry is None:
        return []
    in_group = f", group {entry.group}" if len(view.info.groups) > 1 else ""
    name = followed.track.label
    lines = [f"<b>{name}</b>{in_group}: logical {entry.logical_index} → physical <b>{block_id}</b>"]
    if block_id in followed.token_blocks:
        lines.insert(0, token_words(block_id, followed))
    if _FATES[entry.fate]:
        lines.append(f"<i>{_FATES[entry.fate]}</i>")
    return lines


def token_words(block_id: int, followed: Followed) -> str:
    """For example "token 37: block 12, slot 5"."""
    was = "" if followed.blocks[block_id].is_its_own else " was in"
    computed = "" if followed.is_computed else " (not written)"
    return f"token {followed.position}{was or ':'} block {block_id}, slot {followed.slot}{computed}"


def _place(view: EngineView, group: int, index: int) -> str:
    start = index * view.info.block_size
    place = f"logical {index}, tokens {start}–{start + view.info.block_size - 1}"
    if len(view.info.groups) == 1:
        return place
    window = view.info.groups[group].window
    return f"group {group} ({f'window {window}' if window else 'sees all'}): {place}"
