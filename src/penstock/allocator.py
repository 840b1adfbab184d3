"""Memory of large buffers is kept for the next one instead of being given back to the system each time.

A server receives and sends buffers of a megabyte all day. By default glibc maps each anew and returns it when freed,
and the kernel clears every page again: a profile of a consumer with 12 partitions showed more than a third of the
server's time in page faults. Keeping up to 32 MB costs at most that much resident memory.
"""

import ctypes

KEPT_BYTES = 32 << 20

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_buffers() -> None:
    """Where the C library is not glibc, nothing changes."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
