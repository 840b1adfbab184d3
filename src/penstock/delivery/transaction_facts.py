"""What is remembered of transactions and named steps, as keys and values of a compacted topic.

    key                                      value
    ["transaction", id]                      TransactionFact: who the producer is and where its transaction stands
    ["writer", step, producer id]            WriterFact: an open writer of a step, and where it has written
    ["done", step, epoch]                    DoneFact: the step was committed; `counts` until everyone can see it

All are JSON, so that a person who reads the internal topic understands them.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from penstock.delivery.decision import Fact
from penstock.delivery.offsets import TopicPartition
from penstock.delivery.transaction_events import NO_PRODUCER_ID

Indices = dict[str, list[int]]  # partitions by topic


class TransactionKey(NamedTuple):
    name: str


class WriterKey(NamedTuple):
    step: str
    producer_id: int


class DoneKey(NamedTuple):
    step: str
    epoch: int


Key = TransactionKey | WriterKey | DoneKey


class TransactionFact(msgspec.Struct, frozen=True, omit_defaults=True):
    producer_id: int
    epoch: int
    state: str
    timeout_ms: int
    updated_ms: int  # wall time
    started_ms: int = -1  # wall time
    partitions: Indices = {}
    groups: list[str] = []
    marker: tuple[int, int] | None = None  # producer id and epoch of the markers, while it is being ended
    ended: tuple[int, int] | None = None  # and of its batches
    last: tuple[int, int] | None = None  # the identity before this one, if its owner may still repeat itself


class WriterFact(msgspec.Struct, frozen=True, omit_defaults=True):
    epoch: int  # of the step
    label: str
    timeout_ms: int
    partitions: Indices = {}
    groups: list[str] = []
    aborting: bool = False


class DoneFact(msgspec.Struct, frozen=True, omit_defaults=True):
    mark: str
    committed_ms: int  # wall time
    counts: list[int] | None = None


_encode = msgspec.json.Encoder().encode
_decode_key = msgspec.json.Decoder(list[str | int]).decode
_decode_transaction = msgspec.json.Decoder(TransactionFact).decode
_decode_writer = msgspec.json.Decoder(WriterFact).decode
_decode_done = msgspec.json.Decoder(DoneFact).decode


def transaction_fact(name: str, value: TransactionFact | None) -> Fact:
    return _fact(("transaction", name), value)


def writer_fact(step: str, producer_id: int, value: WriterFact | None) -> Fact:
    return _fact(("writer", step, producer_id), value)


def done_fact(step: str, epoch: int, value: DoneFact | None) -> Fact:
    return _fact(("done", step, epoch), value)


def _fact(key: tuple[str | int, ...], value: msgspec.Struct | None) -> Fact:
    return Fact(_encode(key), None if value is None else _encode(value))


def read_key(key: bytes) -> Key | None:
    """None when the key is of a kind that this version does not know: a newer one wrote it, and it is kept."""
    match _decode_key(key):
        case ["transaction", str(name)]:
            return TransactionKey(name)
        case ["writer", str(step), int(producer_id)] if producer_id > NO_PRODUCER_ID:
            return WriterKey(step, producer_id)
        case ["done", str(step), int(epoch)]:
            return DoneKey(step, epoch)
    return None


def read_transaction(value: bytes) -> TransactionFact:
    return _decode_transaction(value)


def read_writer(value: bytes) -> WriterFact:
    return _decode_writer(value)


def read_done(value: bytes) -> DoneFact:
    return _decode_done(value)


def write_partitions(partitions: Collection[TopicPartition]) -> Indices:
    indices: Indices = {}
    for topic, index in sorted(partitions):
        indices.setdefault(topic, []).append(index)
    return indices


def read_partitions(indices: Indices) -> Iterable[TopicPartition]:
    return (TopicPartition(topic, index) for topic, those in indices.items() for index in those)
