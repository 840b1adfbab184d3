"""The transactions of one partition: which are open, and which were aborted and so are not to be read as committed.

A transaction is open here from its producer's first transactional batch to the marker that ends it; one producer has
one at a time. Batches and markers count in the order in which they were given their offsets, so a producer may go on
behind its marker; but the transaction ends, for readers, when the marker is durable. A marker whose write failed leaves
its transaction open, a first batch whose write failed leaves none.

    first_open      first offset of the oldest transaction that no durable marker has ended, or NEVER
    aborted         in the order of their markers: first offset, marker's offset, producer, and the first offset that
                    was still open (or not yet written) then: no later entry begins before it, so a search can stop
"""

from array import array
from typing import NamedTuple

import msgspec

from penstock.model.batch import BatchHeader
from penstock.model.errors import InvalidTransactionState, LimitReached

NEVER = (1 << 63) - 1
MAX_OPEN_TRANSACTIONS = 10_000
MAX_ABORTED_TRANSACTIONS = 1 << 20  # 32 bytes each

_FIRST, _LAST, _PRODUCER, _STABLE, _COLUMNS = range(5)


class OpenTransaction(NamedTuple):
    producer_epoch: int
    first_offset: int
    since_ms: int


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int  # of its marker


class _Ending(NamedTuple):
    """A transaction whose marker is on its way to the disk."""

    producer_id: int
    transaction: OpenTransaction
    commit: bool


class _Snapshot(msgspec.Struct, array_like=True):
    open: list[tuple[int, int, int, int]]
    aborted: bytes
    first_ended: int
    last_marker: int


class Transactions:
    __slots__ = ("_aborted", "_ending", "_live", "first_ended", "first_open", "last_marker", "open", "pruned")

    def __init__(self) -> None:
        self.open: dict[int, OpenTransaction] = {}  # by producer; nobody but this class changes it
        self.first_open = NEVER
        self.first_ended = NEVER  # from here to the last marker transactions were ended; elsewhere all is committed
        self.last_marker = -1
        self.pruned = 0  # how many times aborted ones were forgotten: who reads meanwhile must look again
        self._live: dict[int, None] = {}  # first offsets, oldest first, of all that no durable marker has ended
        self._ending: dict[int, _Ending] = {}  # by the marker's offset, in order
        self._aborted = array("q")

    # -- writing ----------------------------------------------------------------------------------------------

    def check(self, header: BatchHeader) -> None:
        """Whether a batch of this producer may come now; its epoch and sequence were found to be in order."""
        open_here = self.open.get(header.producer_id)
        if open_here is None:
            if header.is_transactional:
                self._check_room()
            return
        if not header.is_transactional:
            raise InvalidTransactionState(
                f"producer {header.producer_id} has a transaction open here and sent a batch that is not part of it"
            )
        if header.producer_epoch != open_here.producer_epoch:
            raise InvalidTransactionState(
                f"the transaction that producer {header.producer_id} has open here is of epoch "
                f"{open_here.producer_epoch}, the batch of {header.producer_epoch}"
            )

    def _check_room(self) -> None:
        if len(self.open) >= MAX_OPEN_TRANSACTIONS:
            raise LimitReached(f"{MAX_OPEN_TRANSACTIONS} transactions are open in one partition")
        if len(self.open) + len(self._ending) + self.aborted_count >= MAX_ABORTED_TRANSACTIONS:
            raise LimitReached(f"a partition remembers at most {MAX_ABORTED_TRANSACTIONS} aborted transactions")

    def note(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """A transactional batch went to this offset: the first one opens its producer's transaction."""
        if header.producer_id not in self.open:
            self.open[header.producer_id] = OpenTransaction(header.producer_epoch, base_offset, now_ms)
            self._live[base_offset] = None
            if self.first_open == NEVER:
                self.first_open = base_offset

    def end(self, producer_id: int, commit: bool, marker_offset: int) -> None:
        """A marker went to this offset. Until `settle` says that it is durable, the transaction counts as open."""
        transaction = self.open.pop(producer_id, None)
        self.first_ended = min(self.first_ended, marker_offset if transaction is None else transaction.first_offset)
        self.last_marker = max(self.last_marker, marker_offset)
        if transaction is not None:
            self._ending[marker_offset] = _Ending(producer_id, transaction, commit)

    def settle(self, durable_end: int) -> None:
        """Markers before this offset are durable: what they ended is over."""
        while self._ending:
            marker_offset = next(iter(self._ending))
            if marker_offset >= durable_end:
                return
            ended = self._ending.pop(marker_offset)
            first_offset = ended.transaction.first_offset
            del self._live[first_offset]
            self.first_open = next(iter(self._live), NEVER)
            if not ended.commit:
                stable = min(self.first_open, marker_offset + 1)
                self._aborted.extend((first_offset, marker_offset, ended.producer_id, stable))

    def rewind(self, end_offset: int) -> None:
        """What was written at or after this offset was not stored after all."""
        if self.first_open == NEVER:
            return
        for producer_id in [p for p, t in self.open.items() if t.first_offset >= end_offset]:
            del self.open[producer_id]
        for marker_offset in [offset for offset in self._ending if offset >= end_offset]:
            failed = self._ending.pop(marker_offset)
            if failed.transaction.first_offset < end_offset:
                self.open[failed.producer_id] = failed.transaction
        for first_offset in [offset for offset in self._live if offset >= end_offset]:
            del self._live[first_offset]
        self.first_open = next(iter(self._live), NEVER)

    # -- reading ----------------------------------------------------------------------------------------------

    @property
    def aborted_count(self) -> int:
        return len(self._aborted) // _COLUMNS

    def touch(self, start: int, end: int) -> bool:
        """Whether there may be something between these offsets that a reader of what is committed must not see."""
        return start <= self.last_marker and self.first_ended < end

    def aborted_within(self, start: int, end: int) -> list[Aborted]:
        """The aborted transactions that reach into these offsets, by their first offset."""
        entries = self._aborted
        found: list[Aborted] = []
        for at in range(self._first_ending_from(start), len(entries), _COLUMNS):
            if entries[at + _FIRST] < end:
                found.append(Aborted(entries[at + _PRODUCER], entries[at + _FIRST], entries[at + _LAST]))
            if entries[at + _STABLE] >= end:
                break
        found.sort(key=lambda aborted: aborted.first_offset)
        return found

    def _first_ending_from(self, offset: int) -> int:
        """Where the first entry stands whose marker is at or after this offset."""
        low, high = 0, self.aborted_count
        while low < high:
            middle = (low + high) // 2
            if self._aborted[middle * _COLUMNS + _LAST] < offset:
                low = middle + 1
            else:
                high = middle
        return low * _COLUMNS

    # -- keeping ----------------------------------------------------------------------------------------------

    def prune(self, before_offset: int) -> None:
        """Nothing is left of the transactions that were aborted before this offset."""
        gone = self._first_ending_from(before_offset)
        if gone:
            del self._aborted[:gone]
            self.pruned += 1

    def snapshot(self) -> bytes:
        """Of a partition in which nothing is being written."""
        if self.last_marker < 0 and not self.open:
            return b""
        opened = [(producer_id, *transaction) for producer_id, transaction in self.open.items()]
        return msgspec.msgpack.encode(_Snapshot(opened, self._aborted.tobytes(), self.first_ended, self.last_marker))

    def restore(self, snapshot: bytes) -> None:
        if not snapshot:
            return
        state = msgspec.msgpack.decode(snapshot, type=_Snapshot)
        for producer_id, producer_epoch, first_offset, since_ms in sorted(state.open, key=lambda each: each[2]):
            self.open[producer_id] = OpenTransaction(producer_epoch, first_offset, since_ms)
            self._live[first_offset] = None
        self.first_open = next(iter(self._live), NEVER)
        self._aborted.frombytes(state.aborted)
        self.first_ended, self.last_marker = state.first_ended, state.last_marker
