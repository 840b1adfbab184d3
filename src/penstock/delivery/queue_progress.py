"""How far a view has come: per stream a floor, and above it one bit for each message that is settled.

        floor            seen                 end
    ─────┬────────────────┬────────────────────┬────▶ offsets
    done │ 1 0 1 1 0 0 1 0│ not looked at yet  │

Bits live in chunks of 1,024 offsets, whole numbers by `place >> 10`, so an ack out of order costs a bit and no more. A
message that was passed over (a filter, retention) is settled as well; a second set of bits tells, for counting only.
"""

from collections.abc import Iterator

from penstock.delivery.decision import Fact
from penstock.delivery.places import OFFSET_BITS, OFFSET_MASK, offset_of, place_of, stream_of
from penstock.delivery.queue_facts import (
    CHUNK_BITS,
    CHUNK_SIZE,
    FULL_CHUNK,
    FloorFact,
    chunk_fact,
    chunk_key,
    floor_fact,
    floor_key,
    read_chunk,
    read_floor,
)

IN_CHUNK = CHUNK_SIZE - 1
_STREAM_SHIFT = OFFSET_BITS - CHUNK_BITS
# What was only passed over can be found again; it is remembered once it would take a while to.
PASSED_UNTOLD = 1_024


class Stream:
    """One partition as the view reads it."""

    __slots__ = ("durable_floor", "end", "first", "floor", "known_end", "number", "passed", "seen", "start", "told")

    def __init__(self, number: int, first: int, floor: int, passed: int) -> None:
        self.number = number
        self.first = first
        self.floor = floor
        self.passed = passed  # below the floor
        self.seen = floor
        self.start = -1  # of what the partition holds; not told yet
        self.end = floor
        self.known_end = floor  # from here on nothing is known of what was not seen
        self.told = floor  # the floor of the newest fact
        self.durable_floor = floor


class Progress:
    def __init__(self, view_id: int) -> None:
        self.view_id = view_id
        self.streams: dict[int, Stream] = {}
        self.settled: dict[int, int] = {}  # bits by chunk; below the floor they mean nothing
        self.passed: dict[int, int] = {}  # a part of them
        self.touched: set[int] = set()  # chunks to write
        self._touched_floors: set[int] = set()
        self._on_record: set[int] = set()  # chunks that have a fact
        self._known_ends: dict[int, int] = {}  # replayed, by stream

    # -- streams ------------------------------------------------------------------------------------------------

    def add(self, number: int, start: int) -> Stream:
        stream = self.streams.get(number)
        if stream is None:
            stream = self.streams[number] = Stream(number, start, start, 0)
        stream.known_end = max(stream.known_end, self._known_ends.get(number, 0))
        self.advance(stream)
        return stream

    def remove(self, number: int) -> None:
        self.streams.pop(number, None)
        self._touched_floors.add(number)
        chunks = {c for c in [*self.settled, *self._on_record] if c >> _STREAM_SHIFT == number}
        self.touched |= chunks
        for chunk in chunks:
            self.settled.pop(chunk, None)
            self.passed.pop(chunk, None)

    def restart(self, stream: Stream, start: int) -> None:
        """The partition lost what it held and counts from here again."""
        number = stream.number
        self.remove(number)
        self.streams[number] = stream
        stream.__init__(number, start, start, 0)  # type: ignore[misc]

    def cut(self, stream: Stream, end: int) -> None:
        """The partition lost what it held from here on: nothing is settled of what will come in its place."""
        number = stream.number
        for chunk in [chunk for chunk in self.settled if chunk >> _STREAM_SHIFT == number]:
            kept = max(0, min(CHUNK_SIZE, end - ((chunk << CHUNK_BITS) & OFFSET_MASK)))
            bits = self.settled[chunk]
            if bits >> kept:
                self.settled[chunk] = bits & (1 << kept) - 1
                if chunk in self.passed:
                    self.passed[chunk] &= (1 << kept) - 1
                self.touched.add(chunk)
        if stream.floor > end:
            stream.floor, stream.first = end, min(stream.first, end)
            stream.passed = min(stream.passed, end - stream.first)
            self._touched_floors.add(number)
        stream.seen, stream.end = min(stream.seen, end), min(stream.end, end)
        stream.known_end = min(stream.known_end, end)
        stream.durable_floor = min(stream.durable_floor, end)

    # -- settling -----------------------------------------------------------------------------------------------

    def is_settled(self, place: int) -> bool:
        stream = self.streams.get(stream_of(place))
        if stream is None or offset_of(place) < stream.floor:
            return True
        return bool(self.settled.get(place >> CHUNK_BITS, 0) >> (place & IN_CHUNK) & 1)

    def settle_bits(self, chunk: int, bits: int) -> None:
        """These of a chunk are settled. The floor waits for `advance_touched`."""
        bits |= self.settled.get(chunk, 0)
        self.settled[chunk] = FULL_CHUNK if bits == FULL_CHUNK else bits
        self.touched.add(chunk)

    def settle(self, place: int) -> None:
        self.settle_bits(place >> CHUNK_BITS, 1 << (place & IN_CHUNK))
        stream = self.streams.get(stream_of(place))
        if stream is not None and offset_of(place) >= stream.seen:
            stream.known_end = max(stream.known_end, offset_of(place) + 1)

    def unsettle(self, place: int) -> None:
        """What was settled could not be remembered, and is not settled after all."""
        number, offset = stream_of(place), offset_of(place)
        stream = self.streams.get(number)
        if stream is None:
            return
        if offset < stream.floor:
            base, floor = number << _STREAM_SHIFT, stream.floor
            for at in range(offset >> CHUNK_BITS, (floor >> CHUNK_BITS) + 1):
                below = FULL_CHUNK if at < floor >> CHUNK_BITS else (1 << (floor & IN_CHUNK)) - 1
                self.settled[base | at] = self.settled.get(base | at, 0) | below
                if base | at in self.passed:
                    self.passed[base | at] &= ~below  # counted in `stream.passed`
                self.touched.add(base | at)
            stream.floor = offset
            stream.passed = min(stream.passed, offset - stream.first)
        chunk = place >> CHUNK_BITS
        self.settled[chunk] = self.settled.get(chunk, 0) & ~(1 << (place & IN_CHUNK))
        self.touched.add(chunk)
        self._touched_floors.add(number)

    def fill(self, stream: Stream, start: int, end: int, *, passed: bool) -> int:
        """Settle a whole range. How many of it were not settled before."""
        start = max(start, stream.floor)
        if start >= end:
            return 0
        fresh, offset = 0, start
        base = stream.number << _STREAM_SHIFT
        while offset < end:
            chunk, low = base | offset >> CHUNK_BITS, offset & IN_CHUNK
            high = min(CHUNK_SIZE, low + end - offset)
            bits = (1 << high) - (1 << low)
            had = self.settled.get(chunk, 0)
            new = bits & ~had
            if new:
                fresh += new.bit_count()
                bits |= had
                self.settled[chunk] = FULL_CHUNK if bits == FULL_CHUNK else bits
                if passed:
                    new |= self.passed.get(chunk, 0)
                    self.passed[chunk] = FULL_CHUNK if new == FULL_CHUNK else new
                else:
                    self.touched.add(chunk)
            offset += high - low
        return fresh

    def advance(self, stream: Stream) -> None:
        """Move the floor over what is settled."""
        floor = stream.floor
        chunk = stream.number << _STREAM_SHIFT | floor >> CHUNK_BITS
        while bits := self.settled.get(chunk):
            low = floor & IN_CHUNK
            above = bits >> low
            run = (~above & (above + 1)).bit_length() - 1
            if self.passed and (was_passed := self.passed.get(chunk)):
                stream.passed += (was_passed >> low & (1 << run) - 1).bit_count()
            floor += run
            if low + run < CHUNK_SIZE:
                if not above >> run and chunk in self._on_record:
                    self.touched.add(chunk)  # the floor says it all
                break
            del self.settled[chunk]
            self.passed.pop(chunk, None)
            if chunk in self._on_record:
                self.touched.add(chunk)
            chunk += 1
        stream.floor = floor
        stream.seen = max(stream.seen, floor)
        stream.end = max(stream.end, stream.seen)
        if floor - stream.told >= PASSED_UNTOLD:
            self._touched_floors.add(stream.number)

    def advance_touched(self) -> None:
        """After settling: move the floors of the streams that were touched."""
        for number in {chunk >> _STREAM_SHIFT for chunk in self.touched}:
            stream = self.streams.get(number)
            if stream is not None:
                self.advance(stream)
                if stream.floor != stream.told:
                    self._touched_floors.add(number)

    # -- counting -----------------------------------------------------------------------------------------------

    def unsettled(self) -> int:
        """Waiting or being processed, over all streams, unseen ones included."""
        total = sum(stream.end - stream.floor for stream in self.streams.values())
        return total - sum(self._popcounts(self.settled))

    def processed(self) -> int:
        total = sum(stream.floor - stream.first - stream.passed for stream in self.streams.values())
        passed = sum(self._popcounts(self.passed)) if self.passed else 0
        return total + sum(self._popcounts(self.settled)) - passed

    def _popcounts(self, chunks: dict[int, int]) -> Iterator[int]:
        for chunk, bits in chunks.items():
            stream = self.streams.get(chunk >> _STREAM_SHIFT)
            if stream is not None:
                below = stream.floor - ((chunk << CHUNK_BITS) & OFFSET_MASK)
                yield (bits >> below if below > 0 else bits).bit_count()

    # -- facts --------------------------------------------------------------------------------------------------

    def tell(self, facts: list[Fact], tombstones: list[Fact]) -> None:
        """What has changed. Floors come before the tombstones of the chunks below them."""
        for number in self._touched_floors:
            stream = self.streams.get(number)
            if stream is None:
                tombstones.append(Fact(floor_key(self.view_id, number), None))
            else:
                stream.told = stream.floor
                facts.append(floor_fact(self.view_id, number, FloorFact(stream.first, stream.floor, stream.passed)))
        for chunk in self.touched:
            bits = self._worth_telling(chunk)
            if bits:
                self._on_record.add(chunk)
                facts.append(chunk_fact(self.view_id, chunk, bits, self.passed.get(chunk, 0)))
            elif chunk in self._on_record:
                self._on_record.discard(chunk)
                tombstones.append(Fact(chunk_key(self.view_id, chunk), None))
        self._touched_floors.clear()
        self.touched.clear()

    def _worth_telling(self, chunk: int) -> int:
        """The bits of a chunk, 0 when the floor says it all."""
        bits = self.settled.get(chunk, 0)
        stream = self.streams.get(chunk >> _STREAM_SHIFT)
        if stream is None:
            return 0
        below = stream.floor - ((chunk << CHUNK_BITS) & OFFSET_MASK)
        return bits if below <= 0 or bits >> below else 0

    @property
    def has_news(self) -> bool:
        return bool(self.touched or self._touched_floors)

    def retell(self, place: int) -> None:
        """Whoever asks for it to be settled must hear of a failure, though it is settled already."""
        stream = self.streams.get(stream_of(place))
        if stream is not None and offset_of(place) >= stream.durable_floor:
            self.touched.add(place >> CHUNK_BITS)
            self._touched_floors.add(stream.number)

    def retell_floor(self, number: int) -> None:
        self._touched_floors.add(number)

    def retell_chunk(self, chunk: int) -> None:
        self.touched.add(chunk)
        self._on_record.add(chunk)  # as far as we know: if it is not, a tombstone does no harm

    def floor_is_durable(self, number: int, value: bytes | None) -> None:
        stream = self.streams.get(number)
        if stream is not None and value is not None:
            stream.durable_floor = min(max(stream.durable_floor, read_floor(value).floor), stream.floor)

    def replay_floor(self, number: int, value: bytes | None) -> None:
        if value is None:
            self.streams.pop(number, None)
        else:
            first, floor, passed = read_floor(value)
            self.streams[number] = Stream(number, first, floor, passed)

    def replay_chunk(self, chunk: int, value: bytes | None) -> None:
        if value is None:
            self.settled.pop(chunk, None)
            self.passed.pop(chunk, None)
            self._on_record.discard(chunk)
            return
        bits, passed = read_chunk(value)
        self.settled[chunk] = FULL_CHUNK if bits == FULL_CHUNK else bits
        if passed:
            self.passed[chunk] = passed
        else:
            self.passed.pop(chunk, None)
        self._on_record.add(chunk)
        self.know(((chunk << CHUNK_BITS) | bits.bit_length() - 1) if bits else chunk << CHUNK_BITS)

    def know(self, place: int) -> None:
        """Something is known of this place before it is seen."""
        number, end = stream_of(place), offset_of(place) + 1
        stream = self.streams.get(number)
        if stream is not None:
            stream.known_end = max(stream.known_end, end)
        self._known_ends[number] = max(self._known_ends.get(number, 0), end)

    def resume(self) -> None:
        """After replay: forget what the floors say already."""
        for chunk in list(self.settled):
            stream = self.streams.get(chunk >> _STREAM_SHIFT)
            if stream is not None and ((chunk + 1) << CHUNK_BITS) & OFFSET_MASK <= stream.floor:
                del self.settled[chunk]
                self.passed.pop(chunk, None)
                self.touched.add(chunk)
        for stream in self.streams.values():
            stream.known_end = max(stream.known_end, self._known_ends.get(stream.number, 0))
            self.advance(stream)

    def tombstones(self) -> Iterator[Fact]:
        for number in {*self.streams, *self._touched_floors}:
            yield Fact(floor_key(self.view_id, number), None)
        for chunk in self._on_record | self.touched:
            yield Fact(chunk_key(self.view_id, chunk), None)

    def check(self) -> None:
        for number, stream in self.streams.items():
            assert stream.number == number
            assert stream.first <= stream.floor <= stream.seen <= stream.end, "a stream is read forwards"
            assert stream.durable_floor <= stream.floor
            assert 0 <= stream.passed <= stream.floor - stream.first
            assert not self.is_settled(place_of(number, stream.floor)), "the floor is as high as it can be"
        for chunk, bits in self.passed.items():
            assert bits & ~self.settled.get(chunk, 0) == 0, "what was passed over is settled"
