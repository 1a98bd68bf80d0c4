"""How much memory this process may use, and memory for what is read in every step. A leaf."""

from __future__ import annotations

import contextlib
import mmap
from pathlib import Path


def on_huge_pages(num_bytes: int) -> mmap.mmap:
    """Zeroed memory, on huge pages where the system has them; it lives as long as something refers to it.

    A step goes through all weights and keys once. In pages of 4 KB every one of them is looked up on the way, which in
    a virtual machine costs two walks through page tables; in pages of 2 MB that is next to nothing.

    Raises:
        MemoryError: the system does not give that much.
    """
    try:
        memory = mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{num_bytes:,} bytes of memory: {error.strerror}") from error
    with contextlib.suppress(AttributeError, OSError):  # Linux only, and only a wish
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes: the smallest of cgroup v2, cgroup v1 and the machine's memory; None where none of them is told."""
    found = []
    for name in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read(root / name).strip()
        if text.isdigit():
            found.append(int(text))
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            found.append(int(line.split()[1]) * 1024)
    return min(found, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
