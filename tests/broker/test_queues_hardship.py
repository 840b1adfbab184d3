"""Queue views in hardship: steps that cannot be taken, disks that take nothing, logs that lost their end."""

import asyncio
from pathlib import Path

import pytest
from crash_house import CrashHouse, DyingFiles
from queue_house import QueueHouse, soon, values

from penstock.broker.queues import Outcome, Publication
from penstock.model.errors import InvalidRecord, PenstockError, RecordTooLarge, UnknownPartition, UnknownView
from penstock.model.message import Outgoing
from penstock.security.principal import ANONYMOUS
from penstock.testing.files import FaultyFiles


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


# -- logs that lost their end ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("looks_first", [False, True])
@pytest.mark.parametrize("acked", [range(5), (8, 9), (0, 1, 2, 8, 9), range(10)])
async def test_what_a_log_lost_does_not_hide_what_comes_after_it(
    tmp_path: Path, acked: tuple[int, ...], looks_first: bool
) -> None:
    """The topic is not synced, the ledger of the queues is: a power loss takes the one and leaves the other."""
    data, remains = tmp_path / "before", tmp_path / "after"
    (data / "topics").mkdir(parents=True)
    files = DyingFiles(str(data))
    house = await CrashHouse(data, files).open()
    await house.topics.create("orders", 1, {"durability": "os"})
    await house.create(retry_initial_ms=0)
    await house.publish(*(b"%d" % number for number in range(10)))
    leased = await house.lease_all(10)
    await house.ack([leased[offset] for offset in acked])
    await house.settle(Outcome.NACK, [one for one in leased if one.record.offset not in acked])
    files.crash_at = files.calls + 1
    await house.bury()
    files.after_power_loss(str(remains))

    house = await CrashHouse(remains, FaultyFiles()).open()
    if looks_first:
        assert await house.lease() == []
    new = [b"new %d" % number for number in range(12)]
    await house.publish(*new)
    again = await house.lease_all(12)
    assert values(again) == new
    assert {one.attempt for one in again} == {1}
    await house.ack(again)
    await house.restart()
    assert await house.lease() == []
    assert house.counts().processed == 12
    await house.close()


# -- what is of no use any more ----------------------------------------------------------------------------------------


async def test_what_died_while_it_waited_does_not_keep_the_shelf(queue_house: QueueHouse) -> None:
    house = queue_house
    await house.create(ttl_ms=1000, dead_letter="")
    shelf = next(iter(house.queues._registry.by_address.values())).shelf
    kept: list[int] = []
    for _ in range(6):
        await house.publish(*[b"x" * 2000] * 3000)
        await house.ack(await house.lease(10))
        house.advance(5_000)
        assert await house.lease(10) == []
        kept.append(len(shelf))
    assert min(kept[2:]) < max(kept)
    assert house.counts().pending == 0
