"""What the server's process asks of the system before it starts: memory that is kept, descriptors enough, and
turns for its threads."""

import ctypes
import logging
import resource
import sys

_log = logging.getLogger(__name__)

KEPT_BYTES = 32 << 20
# Besides connections: log files, the engine's directories, the loop's own.
DESCRIPTORS_BESIDES_CONNECTIONS = 1500
SWITCH_INTERVAL_S = 50e-6

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_buffers() -> None:
    """Keep the memory of large buffers for the next one instead of giving it back to the system each time.

    A server receives and sends buffers of a megabyte all day. By default glibc maps each anew and returns it when
    freed, and the kernel clears every page again: a profile of a consumer with 12 partitions showed more than a third
    of the server's time in page faults. Keeping up to 32 MB costs at most that much resident memory. Where the C
    library is not glibc, nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def allow_descriptors(max_connections: int) -> None:
    """Take all descriptors we may have (shells often grant 1024 of them), and say so if they are still too few."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    wanted = max_connections + DESCRIPTORS_BESIDES_CONNECTIONS
    if most != resource.RLIM_INFINITY and most < wanted:
        _log.warning(
            "the system allows %d open files, %d connections (max_connections) may need %d: raise it with ulimit -n",
            most,
            max_connections,
            wanted,
        )


def let_threads_in() -> None:
    """Have the loop give way to the threads that write and sync.

    A thread that wants the interpreter waits for the switch interval, but its wait begins anew each time the loop lets
    go of it and takes it again, which a busy loop does with every turn. At the default of 5 ms that may be long: with
    1,000 readers of events a synced publish took 20 ms, and with an interval shorter than a turn it takes 2.5 ms.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
