"""A prompt, exactly as it was typed."""

from __future__ import annotations

import html
import re

_SURROGATES = re.compile("[\ud800-\udfff]")


def prompt_html(text: str) -> str:
    """One ``<div class="typed">`` whose style keeps blanks and line breaks."""
    return f'<div class="typed">{html.escape(whole_characters(text))}</div>'


def whole_characters(text: str) -> str:
    """Lone surrogates, which JSON can carry and UTF-8 cannot, become U+FFFD; line ends become ``\\n``."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    return _SURROGATES.sub("\ufffd", text)
