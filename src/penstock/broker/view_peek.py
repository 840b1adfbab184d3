"""Looking into a view without taking anything out of it."""

from penstock.broker.view import Delivery, View
from penstock.broker.view_outbox import read_places
from penstock.delivery.places import OFFSET_BITS
from penstock.delivery.queue_events import Receipt
from penstock.log.topics import Topics
from penstock.model.errors import InvalidRequest
from penstock.model.record import Record

MAX_PEEKED = 1_000
MAX_LOOKED_AT = 10_000  # in search for what is for this view: what nobody has seen yet, a filter may refuse


async def peek(topics: Topics, view: View, limit: int) -> list[Delivery]:
    """What would be handed out first, then what is still unseen, in the order of each partition."""
    if not 1 <= limit <= MAX_PEEKED:
        raise InvalidRequest(f"1 to {MAX_PEEKED} messages can be looked at, not {limit}")
    for stream in list(view.streams.values()):
        await topics.open(stream.topic, stream.index)
    view.survey()
    places = view.machine.waiting(MAX_LOOKED_AT)
    shown: list[Delivery] = []
    for at in range(0, len(places), limit):
        asked = places[at : at + limit]
        found = await read_places(topics, view, asked, leave=True)
        shown += [_delivery(view, place, found[place]) for place in asked if _is_shown(view, place, found)]
        if len(shown) >= limit:
            break
    return shown[:limit]


def _is_shown(view: View, place: int, found: dict[int, Record]) -> bool:
    stream = view.streams.get(place >> OFFSET_BITS)
    return stream is not None and place in found and stream.sieve.arrival(found[place]) is not None


def _delivery(view: View, place: int, record: Record) -> Delivery:
    stream = view.streams[place >> OFFSET_BITS]
    return Delivery(stream.topic.name, stream.index, record, Receipt(place, 0), 0)
