"""Redriving: dead letters go back to where they came from, for the view that they failed in and no other.

The dead-letter topic is read by a queue view of its own, so what was redriven once is not redriven again. A letter is
published under a name made of that view and its place before it is settled there: a crash between the two repeats the
publish, which then stores nothing.
"""

import asyncio
from collections.abc import Sequence

from penstock.broker.gather import Gatherer, Target
from penstock.broker.view import Delivery, View
from penstock.broker.view_burial import without_dead_headers
from penstock.broker.view_host import ViewHost
from penstock.broker.view_lease import Taker
from penstock.delivery.filters import Match
from penstock.delivery.queue_events import Outcome, QueueSettings
from penstock.model.message import DEAD_TOPIC, DEAD_VIEW, ONLY_FOR, Outgoing, Placed
from penstock.model.record import Headers
from penstock.security.principal import BROKER

LOT = 500
LEASE_MS = 60_000
PATIENCE_S = 30.0  # the letters of one view may lie far apart in a topic that many share
REDRIVE_VIEW = "redrive"
SETTINGS = QueueSettings(lease_ms=LEASE_MS, max_attempts=0, retry_initial_ms=0, dead_letter="")


def redrive_view_name(view: View) -> str:
    """One view for the letters of one view; only a topic that others may share needs more than the plain name."""
    return REDRIVE_VIEW if view.definition.settings.dead_letter is None else f"{REDRIVE_VIEW}-{view.id}"


def letters_of(view: View) -> Match:
    return Match(headers={DEAD_VIEW: view.address})


async def redrive(host: ViewHost, gatherer: Gatherer, view: View, letters: View, limit: int) -> int:
    """At most so many letters back to where they came from; how many that were."""
    done = 0
    while done < limit:
        taken = await Taker(host, letters, min(LOT, limit - done)).take(0, LEASE_MS, patience_s=PATIENCE_S)
        if not taken:
            break
        try:
            outcomes = await _publish(host, gatherer, view, letters, taken)
        except BaseException:
            host.settle_quietly(letters, Outcome.RELEASE, [letter.receipt for letter in taken])
            raise
        stored = [letter.receipt for letter, error in zip(taken, outcomes, strict=True) if error is None]
        failed = [letter.receipt for letter, error in zip(taken, outcomes, strict=True) if error is not None]
        if stored:
            await host.settle(letters, Outcome.ACK, stored)
        done += len(stored)
        if failed:
            host.settle_quietly(letters, Outcome.RELEASE, failed)
            raise next(error for error in outcomes if error is not None)
    return done


async def _publish(
    host: ViewHost, gatherer: Gatherer, view: View, letters: View, taken: Sequence[Delivery]
) -> list[BaseException | None]:
    identity = host.topics.identity(letters.topics[0]) if letters.topics else ""
    targets: dict[str, Target] = {}
    futures: list[asyncio.Future[list[Placed]]] = []
    for letter in taken:
        topic = _origin(view, letter.record.headers)
        target = targets.get(topic)
        if target is None:
            target = targets[topic] = await gatherer.target(BROKER, topic)
        record = letter.record
        headers = (*without_dead_headers(record.headers), (ONLY_FOR, view.address.encode()))
        message = Outgoing(record.key, record.value, headers)
        producer = f"redrive:{letters.id}:{letter.receipt.place}:{record.timestamp_ms}:{identity}"
        futures.append(target.publish([message], producer=producer))
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    return [outcome if isinstance(outcome, BaseException) else None for outcome in outcomes]


def _origin(view: View, headers: Headers) -> str:
    """The topic it came from, if the view still reads that; else the view's own."""
    origin = next((value for name, value in headers if name == DEAD_TOPIC and value is not None), b"")
    topic = origin.decode(errors="replace")
    return topic if view.definition.source(topic) is not None else view.definition.topic
