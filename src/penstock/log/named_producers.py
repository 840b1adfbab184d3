"""Producers that have a name: what each last wrote to one partition, in a few dozen bytes.

A name is hashed to a producer id of 2^62 or more, which no Kafka client is ever given. Its messages carry numbers that
rise and may have gaps; a batch keeps that of its last message, as epoch and sequence of the header:

    number of the last message = (epoch << 31 | base sequence) + last offset delta

An arriving batch is

    new             its last number is above the last one we have, and so is its first            -> append
    a repeat        a batch of the window ends with the same number and is as long                -> that batch's offset
    stored before   its last number is not above the last one we have                             -> offset unknown, -1
    overlapping     it ends above and begins below: whoever numbers must leave out what is stored -> OutOfOrderSequence

Numbers may have gaps, so one that is missing cannot be seen. When a write fails, later numbers are therefore refused
(`owed_by`) until what failed came again, or a new epoch began: else its repeat would be taken for stored.

    state of a producer    seen_ms int64, then per batch of the window: last number int64, length int32, offset int64
"""

from collections import deque
from collections.abc import Iterable
from hashlib import blake2b
from itertools import islice
from struct import Struct

from penstock.model.batch import BatchHeader
from penstock.model.errors import OutOfOrderSequence

FIRST_NAMED_ID = 1 << 62
EPOCH_SHIFT = 31
MAX_NUMBER = (1 << 46) - 1  # an epoch has 15 bits
WINDOW_BATCHES = 5
MAX_NAMED_PER_PARTITION = 20_000
EVICTED_TOGETHER = MAX_NAMED_PER_PARTITION // 20  # one by one, each would step over all that went before it

UNKNOWN_OFFSET = -1

_SEEN = Struct("<q")
_BATCH = Struct("<qiq")


def producer_id_of(name: str) -> int:
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return FIRST_NAMED_ID | int.from_bytes(digest, "big") & FIRST_NAMED_ID - 1


def last_number_of(header: BatchHeader) -> int:
    return (header.producer_epoch << EPOCH_SHIFT | header.base_sequence) + header.last_offset_delta


class NamedProducers:
    """All named producers of one partition, least recently seen first."""

    __slots__ = ("_by_id", "_owed", "_unsettled")

    def __init__(self) -> None:
        self._by_id: dict[int, bytes] = {}
        self._unsettled: deque[tuple[int, int]] = deque()  # (base offset, producer) of what may still fail
        self._owed: dict[int, int] = {}  # the last number of the first batch that failed; few, and only after failures

    def __len__(self) -> int:
        return len(self._by_id)

    def last_number(self, producer_id: int) -> int:
        """The last number this partition has of a producer, -1 if it has none."""
        state = self._by_id.get(producer_id)
        return -1 if state is None else int(_BATCH.unpack_from(state, len(state) - _BATCH.size)[0])

    def owed_by(self, producer_id: int) -> int | None:
        """Of a producer whose write failed: numbers above this one are not for now, unless their epoch is newer."""
        return self._owed.get(producer_id)

    def find(self, producer_id: int, last_number: int, length: int) -> int | None:
        """The offset of the batch that this one repeats, UNKNOWN_OFFSET if it was stored before; None: it is new."""
        state = self._by_id.get(producer_id)
        if state is None:
            return None
        newest = -1
        for newest, known_length, base_offset in _BATCH.iter_unpack(memoryview(state)[_SEEN.size :]):
            if newest == last_number and known_length == length:
                return int(base_offset)
        if last_number <= newest:
            return UNKNOWN_OFFSET
        if last_number - length < newest:
            raise OutOfOrderSequence(f"numbers up to {newest} are stored; a batch of {last_number} begins before that")
        return None

    def add(self, header: BatchHeader, base_offset: int, durable_end: int, now_ms: int) -> None:
        """Note an appended batch. One that is durable always stays: the window is never emptied by a failure."""
        producer_id = header.producer_id
        number, length = last_number_of(header), header.last_offset_delta + 1
        state = self._by_id.pop(producer_id, b"")
        batches = list(_BATCH.iter_unpack(memoryview(state)[_SEEN.size :])) if state else []
        batches.append((number, length, base_offset))
        while len(batches) > WINDOW_BATCHES and batches[1][2] + batches[1][1] <= durable_end:
            del batches[0]
        self._by_id[producer_id] = _packed(now_ms, batches)  # at the end: most recently seen
        self._unsettled.append((base_offset, producer_id))
        while self._unsettled and self._unsettled[0][0] < durable_end:
            self._unsettled.popleft()
        if self._owed and self._owed.get(producer_id, number + 1) <= number:
            del self._owed[producer_id]
        if len(self._by_id) > MAX_NAMED_PER_PARTITION:
            self._forget(list(islice(self._by_id, EVICTED_TOGETHER)))

    def rewind(self, end_offset: int) -> None:
        """Forget what was written at or after this offset: it was not stored after all."""
        lost = {producer_id for base_offset, producer_id in self._unsettled if base_offset >= end_offset}
        self._unsettled.clear()
        for producer_id in lost:
            state = self._by_id.get(producer_id)
            if state is None:
                continue  # evicted meanwhile
            batches = list(_BATCH.iter_unpack(memoryview(state)[_SEEN.size :]))
            kept = [batch for batch in batches if batch[2] < end_offset]
            if len(kept) == len(batches):
                continue
            self._owed.setdefault(producer_id, batches[len(kept)][0])
            if kept:
                self._by_id[producer_id] = _packed(_SEEN.unpack_from(state)[0], kept)
            else:
                del self._by_id[producer_id]
        if len(self._owed) > MAX_NAMED_PER_PARTITION:
            for producer_id in list(islice(self._owed, len(self._owed) - MAX_NAMED_PER_PARTITION)):
                del self._owed[producer_id]

    def expire(self, before_ms: int) -> None:
        """Forget producers not seen since then."""
        self._forget([p for p, state in self._by_id.items() if _SEEN.unpack_from(state)[0] < before_ms])

    def _forget(self, producer_ids: Iterable[int]) -> None:
        for producer_id in producer_ids:
            del self._by_id[producer_id]
            self._owed.pop(producer_id, None)

    def snapshot(self) -> list[tuple[int, bytes]]:
        return list(self._by_id.items())

    def restore(self, snapshot: Iterable[tuple[int, bytes]]) -> None:
        self._by_id.update(snapshot)


def _packed(seen_ms: int, batches: Iterable[tuple[int, ...]]) -> bytes:
    return _SEEN.pack(seen_ms) + b"".join([_BATCH.pack(*batch) for batch in batches])
