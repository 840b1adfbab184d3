"""How thorough a run is. `PENSTOCK_TEST_THOROUGH=1` crashes at every call and kills as often as there is time for.

An ordinary run takes every third call, and tests that differ only in how they crash begin at different ones, so that
together they come by all of them.
"""

import os

THOROUGH = os.environ.get("PENSTOCK_TEST_THOROUGH", "0") != "0"
STRIDE = 1 if THOROUGH else 3


def crash_points(calls: int, phase: int = 0) -> range:
    """At which of a life's calls to crash."""
    return range(1 + phase % STRIDE, calls + 1, STRIDE)


def often(times: int, ordinarily: int) -> int:
    return times if THOROUGH else ordinarily
