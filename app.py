"""Start the page: read the settings, build the page, serve it."""

from __future__ import annotations

import os
import sys

from ui.engine_host import EngineHost
from ui.server import SAMPLE_TRACE, serve
from ui.settings import container_memory_limit, read_settings


def main() -> None:
    settings = read_settings(sys.argv[1:], os.environ, container_memory_limit())
    serve(EngineHost(settings, sample_path=SAMPLE_TRACE))


if __name__ == "__main__":
    main()
