"""What gathers for one partition during one tick: stretches of records, each of which becomes one batch.

A stretch holds the records of many calls, in the order the calls were made; a record's offset is its place in the
stretch until the log gives the batch its own. Whoever numbers its messages has stretches of its own, for a batch
carries one producer's number.
"""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import repeat
from typing import NamedTuple

from penstock.log.admission import make_batch
from penstock.log.named_producers import EPOCH_SHIFT
from penstock.log.partition import Appended, Partition
from penstock.log.settings import TopicSettings
from penstock.model.errors import InvalidRecord, OutOfOrderSequence, PenstockError, StorageFailed, UnknownTopic
from penstock.model.message import Placed
from penstock.model.record import Record

_log = logging.getLogger(__name__)

BATCH_BYTES = 1 << 20  # what is gathered into one batch at most, even where the topic takes more

_SEQUENCE_MASK = (1 << EPOCH_SHIFT) - 1

_make_placed = partial(tuple.__new__, Placed)


class Call(asyncio.Future[list[Placed]]):
    """The future of one publish. It cannot be cancelled: what is on its way into the log is stored or fails."""

    __slots__ = ("_failure", "_missing", "_results")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._missing = 1
        self._results: list[Placed] | None = None
        self._failure: BaseException | None = None

    def cancel(self, msg: object = None) -> bool:
        return False

    def set_exception(self, exception: type | BaseException, /) -> None:
        super().set_exception(exception)
        self._log_traceback = False  # whoever asked may have gone, and need not be told then

    def expect(self, parts: int, count: int) -> None:
        """The answer comes in parts: so many, with so many places together."""
        self._missing = parts
        self._results = [_NOWHERE] * count

    def fill(self, positions: Sequence[int], placed: list[Placed]) -> None:
        assert self._results is not None
        for position, place in zip(positions, placed, strict=True):
            self._results[position] = place

    def part_done(self, failure: BaseException | None) -> None:
        self._missing -= 1
        self._failure = self._failure or failure
        if not self._missing:
            assert self._results is not None
            if self._failure is not None:
                self.set_exception(self._failure)
            else:
                self.set_result(self._results)


_NOWHERE = Placed(-1, -1)


# What of a stretch belongs to one call: the call (None: nobody waits for it), from and to which record, and their
# positions among the call's messages (None: it is the whole call).
Share = tuple[Call | None, int, int, Sequence[int] | None]


class Numbered(NamedTuple):
    """Whose stretch this is, and the number of each of its messages."""

    producer_id: int
    numbers: Sequence[int]
    in_turn: bool  # nothing of it was sent before it was known how the one before ended


class Stretch:
    __slots__ = ("numbered", "records", "shares", "size_bytes")

    def __init__(self, numbered: Numbered | None = None) -> None:
        self.records: list[Record] = []
        self.shares: list[Share] = []
        self.size_bytes = 0
        self.numbered = numbered


class Losses:
    """What failed and nobody waited for: counted, and told of once until something succeeds again."""

    __slots__ = ("_failing", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self._failing = False

    def count(self, messages: int, where: object, failure: BaseException) -> None:
        self.messages += messages
        if not self._failing:
            self._failing = True
            _log.warning("%d messages to %s are lost, nobody waited for them: %s", messages, where, failure)

    def heal(self) -> None:
        self._failing = False


class Pile:
    __slots__ = ("losses", "max_bytes", "partition", "settings", "stretches")

    def __init__(self, partition: Partition, settings: TopicSettings, losses: Losses) -> None:
        self.partition = partition
        self.settings = settings
        self.max_bytes = min(settings.max_message_bytes, BATCH_BYTES)
        self.stretches: list[Stretch] = []
        self.losses = losses

    def room_for(self, size_bytes: int) -> Stretch:
        """The stretch that takes this much more: the last one, or a new one."""
        if self.stretches:
            last = self.stretches[-1]
            if last.numbered is None and last.size_bytes + size_bytes <= self.max_bytes:
                return last
        return self.begin(None)

    def begin(self, numbered: Numbered | None) -> Stretch:
        stretch = Stretch(numbered)
        self.stretches.append(stretch)
        return stretch

    # -- the end of the tick ----------------------------------------------------------------------------------

    def append(self, now_ms: int) -> None:
        broken: StorageFailed | None = None
        for stretch in self.stretches:
            try:
                if self.partition.closed:
                    raise UnknownTopic(f"topic {self.partition.topic!r} was deleted")
                if broken is not None:
                    raise broken  # the log fails what follows a failure: no later number may overtake
                if stretch.numbered is not None:
                    self._append_numbered(stretch, stretch.numbered, now_ms)
                else:
                    self._append(stretch, now_ms)
            except Exception as error:  # it is the answer of everyone whose messages these are
                if isinstance(error, StorageFailed):
                    broken = error
                elif not isinstance(error, PenstockError):
                    _log.exception("a batch for %s could not be made", self.partition.stream)
                self._fail(stretch.shares, error)

    def _append(self, stretch: Stretch, now_ms: int) -> None:
        try:
            made = make_batch(stretch.records, self.settings, now_ms)
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            if len(stretch.shares) == 1:
                raise InvalidRecord(f"a message cannot be stored: {error}") from error
            self._append_apart(stretch, now_ms)
            return
        self._await(self.partition.append(made.header, made.batch), stretch.shares)

    def _append_apart(self, stretch: Stretch, now_ms: int) -> None:
        """One of the calls brought something that is no record: each for itself, so that it harms nobody else."""
        for call, start, stop, positions in stretch.shares:
            alone = Stretch()
            alone.records = stretch.records[start:stop]
            alone.shares = [(call, 0, stop - start, positions)]
            try:
                self._append(alone, now_ms)
            except PenstockError as error:
                self._fail(alone.shares, error)

    def _append_numbered(self, stretch: Stretch, numbered: Numbered, now_ms: int) -> None:
        """Leave out what is stored; the rest goes in under the number of its last message."""
        producer_id, numbers, in_turn = numbered
        named = self.partition.producers.named
        owed = None if in_turn else named.owed_by(producer_id)
        if owed is not None and numbers[0] > owed and numbers[0] >> EPOCH_SHIFT == owed >> EPOCH_SHIFT:
            raise OutOfOrderSequence(f"what was numbered {owed} could not be stored; it comes before {numbers[0]}")
        newest = named.last_number(producer_id)
        stored = 0
        if numbers[0] <= newest < numbers[-1]:
            stored = bisect_right(numbers, newest)
        first = numbers[-1] - (len(numbers) - stored) + 1
        made = make_batch(
            stretch.records[stored:],
            self.settings,
            now_ms,
            producer_id=producer_id,
            producer_epoch=first >> EPOCH_SHIFT,
            base_sequence=first & _SEQUENCE_MASK,
        )
        self._await(self.partition.append(made.header, made.batch), stretch.shares, stored)

    # -- answers ----------------------------------------------------------------------------------------------

    def _await(self, appended: Appended, shares: list[Share], stored: int = 0) -> None:
        """`stored`: so many of the first records are known already and were left out."""
        settle = partial(self._settled, appended.base_offset, shares, stored)
        if appended.durable.done():
            settle(appended.durable)
        else:
            appended.durable.add_done_callback(settle)

    def _settled(self, base_offset: int, shares: list[Share], stored: int, durable: asyncio.Future[None]) -> None:
        failure = durable.exception()
        if failure is not None:
            self._fail(shares, failure)
            return
        index = self.partition.stream.partition
        for call, start, stop, positions in shares:
            if call is None:
                self.losses.heal()
                continue
            if base_offset < 0 or stored:
                offsets = [
                    base_offset + i - stored if i >= stored and base_offset >= 0 else -1 for i in range(start, stop)
                ]
                placed = [Placed(index, offset) for offset in offsets]
            elif stop - start == 1:
                placed = [Placed(index, base_offset + start)]
            else:
                placed = list(map(_make_placed, zip(repeat(index), range(base_offset + start, base_offset + stop))))
            if positions is None:
                call.set_result(placed)
            else:
                call.fill(positions, placed)
                call.part_done(None)

    def _fail(self, shares: list[Share], failure: BaseException) -> None:
        for call, start, stop, positions in shares:
            if call is None:
                self.losses.count(stop - start, self.partition.stream, failure)
            elif positions is None:
                call.set_exception(failure)
            else:
                call.part_done(failure)
