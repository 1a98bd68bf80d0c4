"""Command line, environment, container."""

from __future__ import annotations

import pytest

from ui.settings import (
    HOSTED_LIMITS,
    Limits,
    Settings,
    hosted_pool_bytes,
    read_settings,
)

MIB = 1024 * 1024


def test_defaults_at_home():
    assert read_settings([], {}) == Settings()
    settings = read_settings([], {})
    assert (settings.host, settings.port, settings.model) == ("127.0.0.1", 7860, "SmolLM2-135M-Instruct")
    assert (settings.num_blocks, settings.block_size, settings.limits) == (256, 16, Limits())
    assert settings.limits.words() == ""


def test_the_command_line_wins_over_the_environment():
    environ = {"MICRO_VLLM_MODEL": "a", "GRADIO_SERVER_NAME": "1.2.3.4", "GRADIO_SERVER_PORT": "8001"}
    settings = read_settings([], environ)
    assert (settings.model, settings.host, settings.port) == ("a", "1.2.3.4", 8001)
    settings = read_settings(["--model", "b", "--host", "::1", "--port", "8002"], environ)
    assert (settings.model, settings.host, settings.port) == ("b", "::1", 8002)


def test_a_space_is_hosted_by_itself_and_listens_to_all():
    settings = read_settings([], {"SPACE_ID": "me/space"}, memory_limit=16 * 1024 * MIB)
    assert settings.is_hosted
    assert settings.host == "0.0.0.0"
    assert settings.num_blocks is None
    assert settings.limits is HOSTED_LIMITS
    assert "1,536" in settings.limits.words()
    assert not read_settings([], {"SPACE_ID": "me/space", "MICRO_VLLM_HOSTED": "0"}).is_hosted
    hosted_at_home = read_settings([], {"MICRO_VLLM_HOSTED": "1"})
    assert hosted_at_home.is_hosted
    assert hosted_at_home.host == "127.0.0.1"


@pytest.mark.parametrize(
    ("limit", "expected"), [(None, 256), (512 * MIB, 64), (2048 * MIB, 256), (16384 * MIB, 704)]
)
def test_the_hosted_pool_follows_the_memory(limit, expected):
    assert hosted_pool_bytes(limit) == expected * MIB


@pytest.mark.parametrize(
    ("argv", "environ", "words"),
    [
        (["--port", "0"], {}, "1 to 65535"),
        ([], {"GRADIO_SERVER_PORT": "http"}, "1 to 65535"),
        ([], {"MICRO_VLLM_HOSTED": "maybe"}, "neither on nor off"),
    ],
)
def test_wrong_settings_end_with_the_allowed_values(argv, environ, words, capsys):
    with pytest.raises(SystemExit):
        read_settings(argv, environ)
    assert words in capsys.readouterr().err
