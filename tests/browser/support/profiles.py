"""Chromium with profiles that outlive a test: what they keep compiled loads the page in half the time."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, BrowserType, Page

CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Profiles:
    """The tabs of a test are visitors of their own, each in a profile that holds nothing of earlier tests.

    Cookies and what pages store go before a tab is opened; scripts stay cached for their address, port included.
    """

    def __init__(self, chromium: BrowserType, executable_path: str) -> None:
        self._chromium = chromium
        self._executable_path = executable_path
        self._contexts: dict[tuple[int, str], BrowserContext] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="profiles-", ignore_cleanup_errors=True)

    def open(
        self,
        visitor: int,
        url: str,
        width: int,
        height: int,
        color_scheme: Literal["dark", "light"] = "light",
        **options: Any,
    ) -> Page:
        """An empty tab for the page at ``url``. ``visitor``: counts the open tabs of a test from 0.

        ``options``: those of Playwright's ``launch_persistent_context``.
        """
        context = self._context(visitor, options)
        tab = context.new_page()
        session = context.new_cdp_session(tab)
        session.send(
            "Storage.clearDataForOrigin",
            {"origin": url.rstrip("/"), "storageTypes": "cookies,local_storage,indexeddb"},
        )
        session.detach()
        tab.set_viewport_size({"width": width, "height": height})
        tab.emulate_media(color_scheme=color_scheme)
        return tab

    def _context(self, visitor: int, options: dict[str, Any]) -> BrowserContext:
        key = (visitor, repr(sorted(options.items())))
        if key not in self._contexts:
            self._contexts[key] = self._chromium.launch_persistent_context(
                Path(self._folder.name) / str(len(self._contexts)),
                executable_path=self._executable_path,
                args=CHROMIUM_FLAGS,
                **options,
            )
        return self._contexts[key]

    def close_tabs(self) -> None:
        """The first page of a profile is empty and stays, so that its browser does."""
        for context in self._contexts.values():
            for tab in context.pages[1:]:
                tab.close()

    def close(self) -> None:
        for context in self._contexts.values():
            context.close()
        self._folder.cleanup()
