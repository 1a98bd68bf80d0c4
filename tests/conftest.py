"""What holds for all tests: the environment before torch is imported, and the order."""

from __future__ import annotations

import os

import pytest

# torch's threads wait for each other by spinning. Beside anything else that wants a core (a browser, another test run)
# the one that spins takes the time slice that the other one needs, and every operator costs milliseconds:
# a tenth of the speed was measured. Passive threads sleep instead.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browser tests last: Playwright's synchronous API leaves an event loop running in the main thread for as long as
    its browser lives, and no later test could call ``asyncio.run``."""
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)  # stable
