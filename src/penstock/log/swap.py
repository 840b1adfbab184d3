"""Two topics exchange their names: what has been made of a topic takes its place at once.

    1  look      both topics rest and end where the caller says; without a wait in between their partitions are closed,
                 so nothing more is appended, and readers that wait there look again
    2  record    one batch of the catalogue's ledger: both names, and the offsets that groups are to have. A crash
                 before it is durable leaves everything as it was; the swap has happened when it is
    3  follow    the groups' offsets, which live in another ledger, are replaced; a crash before that is done leaves the
                 record of step 2, and the next start does it before anybody is let in
    4  show      the record is taken back, then both topics are shown under their new names

A topic keeps the bytes where they are: a stream is named for good as it was made. It gets a new topic id, so whoever
knows a topic by its id, to read or to write, finds that it is another one now.
"""

from collections.abc import Sequence

import msgspec

from penstock.log.partition import Partition
from penstock.model.errors import Conflict, InvalidRequest, LimitReached

MAX_SWAP_FACT_BYTES = 256 << 10  # below what a batch of the ledger may have, with the facts beside it
RETRY_AFTER_S = 1.0


class Swap(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is to be done, and what of it is recorded until it is."""

    name: str
    other: str
    offsets: tuple[tuple[str, int, int], ...] = ()  # group, partition, next offset to read


def encode_swap(swap: Swap) -> bytes:
    fact = msgspec.json.encode(swap)
    if len(fact) > MAX_SWAP_FACT_BYTES:
        raise LimitReached(
            f"the offsets of a swap take {len(fact)} bytes; they may take {MAX_SWAP_FACT_BYTES}, commit the rest later"
        )
    return fact


def check_ends(name: str, partitions: Sequence[Partition], ends: Sequence[int]) -> None:
    """Whether the topic ends where the caller believes it does."""
    if len(ends) != len(partitions):
        raise InvalidRequest(f"topic {name!r} has {len(partitions)} partitions; {len(ends)} ends were given")
    for partition, end in zip(partitions, ends, strict=True):
        if partition.end_offset != end:
            raise Conflict(f"{name}-{partition.stream.partition} ends at {partition.end_offset}, not at {end}")


def check_rest(name: str, partitions: Sequence[Partition]) -> None:
    """Whether nothing is under way in these."""
    for partition in partitions:
        if partition.durable_end != partition.end_offset:
            raise Conflict(f"{name}-{partition.stream.partition} is being written to")
        if partition.transactions.open:
            raise Conflict(f"topic {name!r} has an open transaction: wait until it is ended, or end it, and swap again")
