"""How much memory this process may use. A leaf: the worker checks sizes against it, the page sizes its pool by it."""

from __future__ import annotations

from pathlib import Path


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
