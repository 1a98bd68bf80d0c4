"""The house: who may import whom, and what importing a room costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "micro_vllm"
LEAVES = {"memory", "config", "trace", "errors", "sampling.params"}

# Room -> rooms it may import, besides itself and the leaves. Longest prefix of the module name decides.
MAY_IMPORT: dict[str, set[str]] = {
    "": {"config", "engine", "llm", "model_loader"},  # micro_vllm/__init__.py: names loaded on first use
    "errors": set(),
    "memory": set(),
    "config": set(),
    "trace": set(),
    "sampling.params": set(),
    "tokenizer": {"chat_prompt", "detokenizer"},
    "chat_prompt": set(),
    "detokenizer": set(),
    "core": set(),
    "layers": set(),
    "attention": set(),
    "models": {"layers", "attention"},
    "sampling": {"core.scheduler_output"},
    "model_loader": {"models", "tokenizer"},
    "native": {"models", "attention", "model_loader", "sampling"},
    "worker": {"models", "attention", "sampling", "model_loader", "native", "core.scheduler_output"},
    "executor": {"worker", "model_loader", "native", "core.scheduler_output"},
    "engine": {"core", "executor", "tokenizer", "detokenizer", "model_loader", "native"},
    "llm": {"engine", "tokenizer", "model_loader"},
}
UI_MAY_IMPORT = {
    "memory",
    "llm",
    "engine",
    "trace",
    "tokenizer",
    "sampling.params",
    "config",
    "errors",
    "model_loader",
    "native",
    "attention.operators.registry",  # names only: needs no torch
}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def covers(room: str, module: str) -> bool:
    return module == room or module.startswith(room + ".")


def room_of(module: str) -> str:
    rooms = [room for room in MAY_IMPORT if room and covers(room, module)]
    return max(rooms, key=len, default="")


def imports_of(path: Path, package: str = "micro_vllm") -> set[str]:
    """Modules of the package that a file imports, wherever in the file the import stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the whole name"
            names = [node.module or ""]
            inner = PACKAGE.joinpath(*(node.module or "").split(".")[1:])
            if inner.is_dir():  # from micro_vllm.engine import loop
                names += [
                    f"{node.module}.{alias.name}"
                    for alias in node.names
                    if (inner / f"{alias.name}.py").exists() or (inner / alias.name).is_dir()
                ]
        found |= {
            name.removeprefix(package).removeprefix(".") for name in names if name.split(".")[0] == package
        }
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down_only(path):
    module = module_name(path)
    room = room_of(module)
    allowed = MAY_IMPORT[room] | LEAVES | ({room} if room else set())
    for imported in imports_of(path):
        if imported and room_of(imported) == room:
            continue
        assert any(covers(okay, imported) for okay in allowed), f"{module} may not import {imported}"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "ui").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_ui_uses_the_public_rooms_only(path):
    for imported in imports_of(path):
        assert imported == "" or any(covers(okay, imported) for okay in UI_MAY_IMPORT), imported


def test_engine_knows_nothing_of_the_page():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] not in {"gradio", "plotly", "pandas", "ui"}, (
                    f"{path} imports {name}"
                )


@pytest.mark.parametrize(
    "module", ["micro_vllm.core", "micro_vllm.core.scheduler", "micro_vllm.trace", "micro_vllm"]
)
def test_importing_core_loads_no_torch(module):
    code = (
        f"import sys, {module}; print([m for m in ('torch', 'transformers', 'gradio') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert result.stdout.strip() == "[]"


def test_no_cupboards():
    for path in (*FILES, *(ROOT / "ui").rglob("*.py")):
        assert path.name not in {"utils.py", "common.py", "helpers.py", "misc.py"}, path
