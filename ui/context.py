"""What the rooms of the page share: made once by ``build_page``, passed to each."""

from __future__ import annotations

from dataclasses import dataclass

from ui.admission import Admission
from ui.host.engine_host import EngineHost
from ui.runs.runs import Runs
from ui.tokens.store import TokenStore
from ui.visitors import Visitors


@dataclass(frozen=True, slots=True)
class PageContext:
    """No component in it: builders return theirs, and ``connect_...`` joins them."""

    host: EngineHost
    visitors: Visitors
    admission: Admission
    tokens: TokenStore
    runs: Runs
