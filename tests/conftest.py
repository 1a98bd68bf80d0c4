"""Settings of the environment that must stand before torch is imported."""

from __future__ import annotations

import os

# torch's threads wait for each other by spinning. Beside anything else that wants a core (a browser, another test run)
# the one that spins takes the time slice that the other one needs, and every operator costs milliseconds:
# a tenth of the speed was measured. Passive threads sleep instead.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
