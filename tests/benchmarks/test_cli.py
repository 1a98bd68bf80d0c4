"""The command line of the benchmarks, and one quick run of everything on a tiny model."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import main, parse_args
from tests.benchmarks.support import save_small_model
from tests.benchmarks.systems import PEERS, Peer
from tests.benchmarks.workloads import ALIASES, DEFAULT_WORKLOADS, WORKLOADS


def test_defaults_are_all_peers_all_workloads_five_rounds():
    args = parse_args([])
    assert args.peers == tuple(PEERS)
    assert args.workloads == (*DEFAULT_WORKLOADS, "overhead")
    assert args.rounds == 5
    assert not args.quick


def test_names_are_split_and_none_means_ours_alone():
    args = parse_args(["--peers", "llama.cpp, transformers", "--workloads", "W1,mixed16", "--rounds", "7"])
    assert args.peers == ("llama.cpp", "transformers")
    assert args.workloads == ("W1", "mixed16")
    assert args.rounds == 7
    assert parse_args(["--peers", "none"]).peers == ()


def test_former_names_still_work():
    args = parse_args(["--workloads", "alone,batch32,W1", "--repeats", "3"])
    assert args.workloads == ("W1", "W2")
    assert args.rounds == 3
    assert set(ALIASES.values()) <= WORKLOADS.keys()
    assert ALIASES.keys().isdisjoint(WORKLOADS)


@pytest.mark.parametrize(
    ("argv", "value", "known"),
    [
        (["--peers", "vllm"], "'vllm'", tuple(PEERS)),
        (["--workloads", "W1,mixed17"], "'mixed17'", tuple(WORKLOADS)),
    ],
)
def test_unknown_name_is_refused_with_the_list(argv, value, known, capsys):
    with pytest.raises(SystemExit) as exit_info:
        parse_args(argv)
    message = capsys.readouterr().err
    assert exit_info.value.code == 2
    assert value in message
    assert all(name in message for name in known)


@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_rounds_must_be_a_positive_number(value, capsys):
    with pytest.raises(SystemExit):
        parse_args(["--rounds", value])
    assert value in capsys.readouterr().err


def test_wrong_arguments_are_told_before_torch_is_loaded():
    code = (
        "import sys\nfrom tests.benchmarks.__main__ import main\n"
        "try:\n    main(['--peers', 'x'])\nexcept SystemExit:\n    sys.exit('torch' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL, check=False).returncode == 0
    )


def test_a_package_that_is_missing_is_noticed_without_importing_it():
    assert not Peer("x", "no_such_package_here", "pip install x", "no.module").is_installed()
    assert PEERS["transformers"].is_installed()
    assert "tests/benchmarks/requirements.txt" in PEERS["llama.cpp"].install


@pytest.mark.slow
def test_a_quick_run_goes_through_every_workload(tmp_path: Path, capsys, monkeypatch):
    """All systems that are installed, on a tiny model, in this process."""
    for name in ("TRANSFORMERS_VERBOSITY", "HF_HUB_DISABLE_PROGRESS_BARS"):  # what main sets must not stay
        monkeypatch.setenv(name, os.environ.get(name, "error" if "VERBOSITY" in name else "1"))
    for name in ("transformers", "ContinuousBatchingLogger"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.getLogger(name).level)
    folder = save_small_model(tmp_path)
    written = tmp_path / "figures.json"
    assert main(["--quick", "--model", str(folder), "--json", str(written)]) == 0
    words = capsys.readouterr().out
    assert "measure nothing" in words
    figures = json.loads(written.read_text())
    assert list(figures["workloads"]) == list(DEFAULT_WORKLOADS)
    assert figures["is_quick"] is True
    for name, workload in figures["workloads"].items():
        assert f"\n{name}: " in words
        ran = {system["name"] for system in workload["systems"]} | workload["left_out"].keys()
        assert ran <= set(WORKLOADS[name].systems)
        assert any(system.startswith("micro-vllm") for system in ran)
    assert len(figures["overhead"]) == 4
    assert figures["waiting"]["num_waiting"] == 100
