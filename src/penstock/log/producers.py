"""Idempotence: what each producer last wrote to one partition, so that a repeat is not stored twice.

A producer numbers its records per partition; a batch carries the first number. Per producer we keep its epoch and its
last five batches (a client has at most five in flight). An arriving batch is

    in order      its first number follows the last one we have            -> append
    a repeat      it equals one of the batches we have                     -> answer with that batch's offset
    anything else                                                          -> OutOfOrderSequence
    of an older epoch                                                      -> InvalidProducerEpoch

A producer unknown here may start with any number: its state may have expired. That is also why a number below those we
have is not taken for a repeat: it may never have been stored, and a client takes the answer for a repeat as success.
Batches not yet durable are in the window too, and are taken out again when their write fails.

A marker that ends a transaction may carry a newer epoch than its batches: older ones are fenced from then on, and the
new one begins with sequence 0. A marker of the same epoch changes nothing: sequences go on. A producer that has a
transaction open is never forgotten.

Producers with a name obey a rule of their own: see `log/named_producers.py`.
"""

from collections import deque
from collections.abc import Container
from itertools import islice
from typing import NamedTuple

import msgspec

from penstock.log.named_producers import FIRST_NAMED_ID, NamedProducers, last_number_of
from penstock.model.batch import BatchHeader
from penstock.model.errors import InvalidProducerEpoch, OutOfOrderSequence

WINDOW_BATCHES = 5
MAX_PRODUCERS_PER_PARTITION = 20_000
EVICTED_TOGETHER = MAX_PRODUCERS_PER_PARTITION // 20  # one by one, each would step over all that went before it
SEQUENCE_MODULUS = 1 << 31


class Written(NamedTuple):
    first_sequence: int
    last_sequence: int
    base_offset: int  # -1: stored before, nobody knows where
    end_offset: int
    timestamp_ms: int  # the log append time it was answered with, -1 under CreateTime


class Producer:
    __slots__ = ("batches", "epoch", "fresh", "seen_ms")

    def __init__(self, epoch: int, seen_ms: int) -> None:
        self.epoch = epoch
        self.fresh = False  # a marker began this epoch: without batches, what comes first is sequence 0
        self.seen_ms = seen_ms
        self.batches: deque[Written] = deque()


class _Snapshot(msgspec.Struct, array_like=True):
    producers: list[tuple[int, int, int, list[Written]]]
    named: list[tuple[int, bytes]] = []
    fresh: list[int] = []


class Producers:
    """All producers of one partition, least recently seen first. `kept` are never forgotten."""

    __slots__ = ("_by_id", "_kept", "named")

    def __init__(self, kept: Container[int] = ()) -> None:
        self._by_id: dict[int, Producer] = {}
        self._kept = kept
        self.named = NamedProducers()

    def __len__(self) -> int:
        return len(self._by_id) + len(self.named)

    def find_repeat(self, header: BatchHeader) -> Written | None:
        """The batch that this one repeats, or None if it may be appended; raises when it may not."""
        if header.producer_id >= FIRST_NAMED_ID:
            return self._find_named_repeat(header)
        producer = self._by_id.get(header.producer_id)
        if producer is None:
            return None
        if header.producer_epoch < producer.epoch:
            raise InvalidProducerEpoch(
                f"producer {header.producer_id} has epoch {producer.epoch}, the batch has {header.producer_epoch}"
            )
        if header.producer_epoch > producer.epoch:
            if header.base_sequence != 0:
                raise OutOfOrderSequence(f"a new epoch begins with sequence 0, not {header.base_sequence}")
            return None
        if not producer.batches:
            if producer.fresh and header.base_sequence != 0:
                raise OutOfOrderSequence(f"a new epoch begins with sequence 0, not {header.base_sequence}")
            return None
        for written in producer.batches:
            if (written.first_sequence, written.last_sequence) == (header.base_sequence, header.last_sequence):
                return written
        last = producer.batches[-1].last_sequence
        if header.base_sequence == (last + 1) % SEQUENCE_MODULUS:
            return None
        raise OutOfOrderSequence(f"producer {header.producer_id} sent sequence {header.base_sequence} after {last}")

    def _find_named_repeat(self, header: BatchHeader) -> Written | None:
        length = header.last_offset_delta + 1
        offset = self.named.find(header.producer_id, last_number_of(header), length)
        if offset is None:
            return None
        end_offset = offset + length if offset >= 0 else -1
        return Written(header.base_sequence, header.last_sequence, offset, end_offset, -1)

    def add(self, header: BatchHeader, written: Written, durable_end: int, now_ms: int) -> None:
        """Note an appended batch. Only batches that are durable leave the window."""
        if header.producer_id >= FIRST_NAMED_ID:
            self.named.add(header, written.base_offset, durable_end, now_ms)
            return
        producer = self._by_id.pop(header.producer_id, None)
        if producer is None or producer.epoch != header.producer_epoch:
            producer = Producer(header.producer_epoch, now_ms)
        self._by_id[header.producer_id] = producer  # moved to the end: most recently seen
        producer.seen_ms = now_ms
        batches = producer.batches
        batches.append(written)
        while len(batches) > WINDOW_BATCHES and batches[0].end_offset <= durable_end:
            batches.popleft()
            producer.fresh = False
        self._evict()

    def check_marker(self, producer_id: int, epoch: int) -> None:
        producer = self._by_id.get(producer_id)
        if producer is not None and epoch < producer.epoch:
            raise InvalidProducerEpoch(
                f"producer {producer_id} has epoch {producer.epoch}, the end of its transaction has {epoch}"
            )

    def add_marker(self, producer_id: int, epoch: int, now_ms: int) -> None:
        """Note the end of a transaction. A newer epoch fences older ones at once, also when its write fails: whoever
        decided the end tries again."""
        producer = self._by_id.pop(producer_id, None)
        if producer is None:
            producer = Producer(epoch, now_ms)
        elif producer.epoch != epoch:
            producer = Producer(epoch, now_ms)
            producer.fresh = True
        producer.seen_ms = now_ms
        self._by_id[producer_id] = producer
        self._evict()

    def _evict(self) -> None:
        if len(self._by_id) > MAX_PRODUCERS_PER_PARTITION:
            for producer_id in list(islice((p for p in self._by_id if p not in self._kept), EVICTED_TOGETHER)):
                del self._by_id[producer_id]

    def rewind(self, end_offset: int) -> None:
        """Forget what was written at or after this offset: it was not stored after all."""
        for producer in self._by_id.values():
            while producer.batches and producer.batches[-1].base_offset >= end_offset:
                producer.batches.pop()
        self.named.rewind(end_offset)

    def forget_sequences(self) -> None:
        """Producers have written since, nobody knows what: each may go on with any number."""
        for producer in self._by_id.values():
            producer.batches.clear()
            producer.fresh = False

    def expire(self, before_ms: int) -> None:
        """Forget producers not seen since then."""
        for producer_id in [p for p, producer in self._by_id.items() if producer.seen_ms < before_ms]:
            if producer_id not in self._kept:
                del self._by_id[producer_id]
        self.named.expire(before_ms)

    def active(self) -> dict[int, Producer]:
        return self._by_id

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(
            _Snapshot(
                [(pid, p.epoch, p.seen_ms, list(p.batches)) for pid, p in self._by_id.items()],
                self.named.snapshot(),
                [pid for pid, p in self._by_id.items() if p.fresh],
            )
        )

    def restore(self, snapshot: bytes) -> None:
        state = msgspec.msgpack.decode(snapshot, type=_Snapshot)
        self.named.restore(state.named)
        fresh = set(state.fresh)
        for producer_id, epoch, seen_ms, batches in state.producers:
            producer = Producer(epoch, seen_ms)
            producer.batches.extend(batches)
            producer.fresh = producer_id in fresh
            self._by_id[producer_id] = producer
