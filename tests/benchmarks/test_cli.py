"""The command line of the benchmarks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.benchmarks.__main__ import parse_args
from tests.benchmarks.systems import PEERS, Peer
from tests.benchmarks.workloads import WORKLOADS


def test_defaults_are_all_peers_all_workloads_five_repeats():
    args = parse_args([])
    assert args.peers == tuple(PEERS)
    assert args.workloads == (*WORKLOADS, "overhead")
    assert args.repeats == 5


def test_names_are_split_and_none_means_ours_alone():
    args = parse_args(["--peers", "llama.cpp, transformers", "--workloads", "alone,mixed16"])
    assert args.peers == ("llama.cpp", "transformers")
    assert args.workloads == ("alone", "mixed16")
    assert parse_args(["--peers", "none"]).peers == ()


@pytest.mark.parametrize(
    ("argv", "value", "known"),
    [
        (["--peers", "vllm"], "'vllm'", tuple(PEERS)),
        (["--workloads", "alone,mixed17"], "'mixed17'", tuple(WORKLOADS)),
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
def test_repeats_must_be_a_positive_number(value, capsys):
    with pytest.raises(SystemExit):
        parse_args(["--repeats", value])
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
