"""Queue views in hardship: steps that cannot be taken, disks that take nothing, logs that lost their end."""

import asyncio

import pytest
from queue_house import QueueHouse, soon

from penstock.broker.queues import Publication
from penstock.model.errors import InvalidRecord, PenstockError, RecordTooLarge, UnknownPartition, UnknownView
from penstock.model.message import Outgoing
from penstock.security.principal import ANONYMOUS


@pytest.mark.parametrize(
    ("settings", "message", "refusal"),
    [
        ({"max.message.bytes": "1000"}, Outgoing(None, b"x" * 5000), RecordTooLarge),
        ({"cleanup.policy": "compact"}, Outgoing(None, b"no key"), InvalidRecord),
        ({}, Outgoing(None, b"nowhere", (), -1, 7), UnknownPartition),
        ({}, Outgoing(None, "text is no bytes"), InvalidRecord),  # type: ignore[arg-type]
    ],
)
async def test_a_step_that_cannot_publish_settles_nothing(
    queue_house: QueueHouse, settings: dict[str, str], message: Outgoing, refusal: type[PenstockError]
) -> None:
    house = queue_house
    await house.topics.create("out", 1, settings)
    await house.create()
    await house.publish(b"a")
    (leased,) = await house.lease()
    publications = [Publication("out", (Outgoing(b"k", b"good"),)), Publication("out", (message,))]
    with pytest.raises(refusal):
        await soon(house.queues.step(ANONYMOUS, "orders", "queue", "step", [leased.receipt], publications))
    assert house.counts().processing == 1
    assert await house.values_of("out") == []
    assert await soon(house.queues.step(ANONYMOUS, "orders", "queue", "step", [leased.receipt], publications[:1]))
    assert await house.values_of("out") == [b"good"]


async def test_a_step_of_a_view_that_went_meanwhile_does_nothing(queue_house: QueueHouse) -> None:
    house = queue_house
    await house.create()
    await house.publish(b"a")
    (leased,) = await house.lease()
    step = house.queues.step(
        ANONYMOUS, "orders", "queue", "step", [leased.receipt], [Publication("new", (Outgoing(None, b"x"),))]
    )
    stepping = asyncio.ensure_future(step)
    deleting = asyncio.ensure_future(house.queues.delete(ANONYMOUS, "orders", "queue"))
    outcome, _ = await soon(asyncio.gather(stepping, deleting, return_exceptions=True))
    if isinstance(outcome, UnknownView):
        assert await house.values_of("new") == []
    else:
        assert outcome is True
        assert await house.values_of("new") == [b"x"]
