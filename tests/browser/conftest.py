"""Fixtures: a Chromium, the page over a tiny random model, and tabs that complain about console messages."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser.support.profiles import Profiles
from tests.browser.support.running_page import RunningPage, page_in_process

QUIET_CONSOLE = {"log", "info", "debug"}
OFFLINE_WORDS = re.compile(r"net::ERR_|Failed to fetch|network error|AbortError|Connection errored out")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Profiles]:
    """A headless browser. Without one the tests are skipped, but in CI they fail."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        hint = (
            "no Chromium on the PATH: install one (for example `apt install chromium`) to run tests/browser."
        )
        if os.environ.get("CI") == "true":
            pytest.fail(hint)
        pytest.skip(hint)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        profiles = Profiles(playwright.chromium, path)
        yield profiles
        profiles.close()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a byte tokenizer whose end token is never drawn: answers run to max tokens."""
    from tests.engine.support.models import edit_json, save_tiny_model

    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    save_tiny_model(folder, tokenizer=True, vocab_size=300, eos_token_id=299, max_position_embeddings=1024)
    # Its tokenizer has an end token of its own, which a random model draws every now and then.
    edit_json(folder / "tokenizer_config.json", remove=("eos_token",))
    return folder


@pytest.fixture(scope="module")
def served(tiny_model: Path) -> Iterator[RunningPage]:
    """The page with the tiny model, at 20 steps a second at most, so that a test can act in the middle."""
    with page_in_process(str(tiny_model), pace=0.05) as page:
        yield page


@pytest.fixture
def serve_page(tiny_model: Path) -> Iterator[Callable[..., RunningPage]]:
    """``serve_page(model=None, **page_in_process)`` -> a page of the test's own, served until its tabs are closed."""
    with contextlib.ExitStack() as pages:
        yield lambda model=None, **options: pages.enter_context(
            page_in_process(model or str(tiny_model), **options)
        )


@pytest.fixture
def open_tab(chromium, serve_page) -> Iterator[Callable]:
    """``open_tab(url)`` -> a Playwright page. At the end: no page error, no console warning, no other host asked.

    Needs ``serve_page`` only to be torn down before it: a tab left alone by its server complains.

    ``expect_offline``: the test cuts the connection (server ends, tab reloads); the words about that are no complaint.
    ``expect_refusal``: nor are the browser's about an answer with this status.
    """
    complaints, visitors = [], itertools.count()

    def open_one(
        url: str,
        *,
        width: int = 1440,
        height: int = 960,
        query: str = "",
        expect_offline: bool = False,
        expect_refusal: int | None = None,
        **options,
    ):
        tab = chromium.open(next(visitors), url, width, height, **options)
        tab.set_default_timeout(30_000)
        tab.on("pageerror", lambda error: complaints.append(f"page error: {error}"))
        tab.on(
            "console",
            lambda m: (
                None
                if m.type in QUIET_CONSOLE
                or (expect_offline and OFFLINE_WORDS.search(m.text))
                or (expect_refusal and f"the server responded with a status of {expect_refusal}" in m.text)
                else complaints.append(f"{m.type}: {m.text}")
            ),
        )
        tab.on(
            "request",
            lambda r: (
                None
                if r.url.startswith((url, "data:", "blob:"))
                else complaints.append(f"asked another host: {r.url}")
            ),
        )
        tab.goto(url + query)
        tab.wait_for_selector("#send")
        tab.wait_for_selector("#kv-block-map .main-svg" if width > 860 else "#prompt textarea")
        return tab

    yield open_one
    chromium.close_tabs()
    assert complaints == []
