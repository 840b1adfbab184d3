"""Looking into a view without taking anything out of it."""

from penstock.broker.view import Delivery, View
from penstock.broker.view_outbox import read_places
from penstock.delivery.places import OFFSET_BITS, place_of
from penstock.delivery.queue_events import Receipt, Status
from penstock.log.topics import Topics
from penstock.model.errors import InvalidRequest
from penstock.model.record import Record

MAX_PEEKED = 1_000
MAX_READ_BYTES = 4 << 20  # of what nobody has seen yet, in search for what is for this view
CHUNK_BYTES = 256 << 10


async def peek(topics: Topics, view: View, limit: int) -> list[Delivery]:
    """What would be handed out first, then what is still unseen, in the order of each partition."""
    if not 1 <= limit <= MAX_PEEKED:
        raise InvalidRequest(f"1 to {MAX_PEEKED} messages can be looked at, not {limit}")
    waiting = view.machine.waiting(limit)
    found = await read_places(topics, view, waiting, leave=True)
    shown = {place: found[place] for place in waiting if place in found}
    for number in list(view.streams):
        if len(shown) >= limit:
            break
        await _unseen(topics, view, number, limit, shown)
    return [_delivery(view, place, record) for place, record in shown.items() if place >> OFFSET_BITS in view.streams]


async def _unseen(topics: Topics, view: View, number: int, limit: int, shown: dict[int, Record]) -> None:
    stream = view.streams.get(number)
    if stream is None:
        return
    partition = await topics.open(stream.topic, stream.index)
    view.machine.grew(number, partition.start_offset, partition.durable_end)
    offset, left_bytes = max(view.machine.floor(number), partition.start_offset), MAX_READ_BYTES
    while len(shown) < limit and offset < partition.durable_end and left_bytes > 0:
        records, offset = await partition.records(max(offset, partition.start_offset), CHUNK_BYTES)
        left_bytes -= CHUNK_BYTES
        taken = {arrival.offset for arrival in stream.sieve.arrivals(records)}
        for record in records:
            place = place_of(number, record.offset)
            if len(shown) < limit and record.offset in taken and view.machine.status_of(place) is Status.PENDING:
                shown.setdefault(place, record)


def _delivery(view: View, place: int, record: Record) -> Delivery:
    stream = view.streams[place >> OFFSET_BITS]
    return Delivery(stream.topic.name, stream.index, record, Receipt(place, 0), 0)
