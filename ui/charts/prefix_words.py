"""What the prefix cache chart says: on its boxes, on hover, and in the line above. Ids and counts, nobody's text."""

from __future__ import annotations

from collections.abc import Sequence

from ui.charts.prefix_tree import Piece
from ui.charts.wording import counted, longest_that_fits, percent
from ui.view import EngineView, request_label

EMPTY = (
    "Full blocks of prompts and answers will stand here: "
    "a prompt that begins like them need not compute them again."
)
KEPT = "kept"
"""In a box that nobody holds."""
_IDS_SHOWN = 8


def headline_words(view: EngineView, num_left_out: int, width: float) -> str:
    """The hit rate; what is cached, and what has no room here."""
    usage = view.usage[-1] if view.usage else None
    if usage is None or not view.prefix:
        return ""
    queries, hits = usage.prefix_queries, usage.prefix_hits
    rate = percent(hits / queries) if queries else "0 %"
    left_out = f"<b>{num_left_out:,}</b> of {len(view.prefix):,} blocks not shown" if num_left_out else ""
    cached = left_out or f"{len(view.prefix):,} blocks"
    found = f"<b>{rate}</b> of looked-up tokens found"
    return longest_that_fits(
        [
            f"{found} ({hits:,} of {queries:,}) · {cached}",
            f"{found} · {cached}",
            f"<b>{rate}</b> of tokens found · {cached}",
            f"<b>{rate}</b> found · {cached}",
        ],
        width - 12,
    )


def piece_wordings(piece: Piece, held: Sequence[str], is_shortened: bool) -> list[str]:
    """For the box of a piece, the longest first. A shortened run says how many blocks it is before all else.

    ``held``: the letters of those who hold it.
    """
    who = "+".join(held) if len(held) <= 3 else f"{len(held)} requests"
    short = "+".join(held) if len(held) <= 3 else f"{len(held)}"
    if not held:
        who, short = KEPT, ""
    hits = f" ×{piece.first.num_hits}" if piece.first.num_hits else ""
    count = len(piece.nodes)
    if is_shortened:
        return [
            f"{who}{hits} · {counted(count, 'block')}",
            f"{short}{hits} · {count}".lstrip(" ·"),
            counted(count, "block"),
            f"{count}",
        ]
    return [f"{who}{hits}", f"{short}{hits}".lstrip(), hits.strip() or short, short]


def describe(piece: Piece, letters: Sequence[str], size: int, has_groups: bool) -> str:
    """The hover of a piece. ``letters``: of those who hold it; ``size``: of a block."""
    nodes = piece.nodes
    first, last = nodes[0], nodes[-1]
    blocks = [node.block_ids[0] for node in nodes]
    ids = ", ".join(map(str, blocks[:_IDS_SHOWN])) + (", …" if len(blocks) > _IDS_SHOWN else "")
    tokens = f"tokens {first.depth * size:,}–{(first.depth + len(nodes)) * size - 1:,}"
    lines = [
        f"<b>block {ids}</b> · {tokens}"
        if len(blocks) == 1
        else f"<b>{len(blocks)} blocks</b> · {tokens}<br>{ids}"
    ]
    if letters:
        shown = ", ".join(letters[:12]) + (", …" if len(letters) > 12 else "")
        lines.append(f"held by {shown}")
    elif first.is_evictable:
        lines.append("kept for reuse, can be evicted")
    if first.num_hits:
        when = f", last in step {first.last_hit_step:,}" if first.last_hit_step is not None else ""
        lines.append(
            f"found {first.num_hits} {'time' if first.num_hits == 1 else 'times'} by later prompts{when}"
        )
    else:
        lines.append("not found by another prompt yet")
    if piece.is_orphan:
        lines.append("the block before it was evicted: out of reach until that one is computed again")
    makers = list(dict.fromkeys(n.first_arrival for n in nodes if n.first_arrival is not None))
    if makers:
        lines.append("computed by " + ", ".join(request_label(arrival) for arrival in makers[:4]))
    copies = max(len(node.block_ids) for node in nodes)
    if copies > 1:
        lines.append(f"computed twice at the same time: {copies} blocks with the same content")
    hashes = first.key.partition(":")[2][:8] + (
        f" … {last.key.partition(':')[2][:8]}" if last is not first else ""
    )
    group = f"group {first.group} · " if has_groups else ""
    lines.append(f"{group}hash {hashes}")
    return "<br>".join(lines)
