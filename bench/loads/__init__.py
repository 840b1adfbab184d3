"""A load is a function that puts one peer under one kind of work and returns the numbers as a flat dictionary.

Loads neither compare nor judge: `bench.report` does the first, nobody does the second.
"""

import itertools
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from confluent_kafka import KafkaException

Answer = TypeVar("Answer")

DELETION_S = 1.0  # every peer removes the files of a deleted topic within that
WARMED_BYTES = 1_500_000_000

_numbers = itertools.count()


def fresh_name(text: str) -> str:
    return f"{text}-{next(_numbers)}"


def settle(directory: Path, warmed_bytes: int = WARMED_BYTES) -> None:
    """Before the clock starts, what others wrote is on the disk, and the system's free memory is really there.

    A virtual machine gives memory that was free for some seconds back to its host, and getting a page again costs four
    times as much as writing to it: plain writes to a file fall from 5 GB/s to 1.3. So a file of a run's size is written
    and removed just before each run, and everyone finds the same memory.
    """
    time.sleep(DELETION_S)
    os.sync()
    block = bytes(1 << 20)
    with tempfile.TemporaryFile(dir=directory, buffering=0) as scratch:
        for _ in range(warmed_bytes // len(block)):
            scratch.write(block)


def until_answered(ask: Callable[[], Answer], timeout_s: float = 120.0) -> Answer:
    """The first answer that is not an error: a server may be up before it leads what it is asked about."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return ask()
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
