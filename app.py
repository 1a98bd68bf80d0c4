"""Start the page: read the settings, build the page, serve it."""

from __future__ import annotations

import os
import sys

from micro_vllm.memory import memory_limit
from ui.host.engine_host import EngineHost
from ui.host.serving import load_for_good
from ui.server import SAMPLE_TRACE, serve
from ui.settings import read_settings


def main() -> None:
    settings = read_settings(sys.argv[1:], os.environ, memory_limit())
    serve(EngineHost(settings, load=load_for_good, sample_path=SAMPLE_TRACE))


if __name__ == "__main__":
    main()
