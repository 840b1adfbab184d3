"""A load is a function that puts one peer under one kind of work and returns the numbers as a flat dictionary.

Loads neither compare nor judge: `bench.report` does the first, nobody does the second.
"""

import itertools
import os
import time
from collections.abc import Callable
from typing import TypeVar

from confluent_kafka import KafkaException

Answer = TypeVar("Answer")

DELETION_S = 1.0  # every peer removes the files of a deleted topic within that

_numbers = itertools.count()


def fresh_name(text: str) -> str:
    return f"{text}-{next(_numbers)}"


def settle_disk() -> None:
    """What others wrote reaches the disk, and what they deleted is gone, before the clock starts: nobody pays for it."""
    time.sleep(DELETION_S)
    os.sync()


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
