"""cleanup.policy=settled through the log: what every queue view has settled goes, in whole segments."""

import pytest
from log_house import all_records, batch_of, put

from penstock.log import retention
from penstock.log.housekeeper import Housekeeper
from penstock.log.partition import Partition
from penstock.log.settings import topic_settings
from penstock.model.errors import InvalidSetting

DAY_MS = 24 * 3600 * 1000


async def partition_of(house, **settings: str) -> Partition:
    topic = await house.topics.create("orders", 1, {k.replace("_", "."): v for k, v in settings.items()})
    return await house.topics.open(topic, 0)


async def tidy(house, partition: Partition) -> None:
    await Housekeeper(house.clock, DAY_MS).tidy(partition, house.clock.wall_ms())


async def fill(house, partition: Partition, batches: int = 20) -> None:
    for _ in range(batches):
        await put(partition, batch_of(bytes(300), time_ms=house.clock.wall_ms()))


async def test_segments_before_the_settled_end_go_whole(house) -> None:
    partition = await partition_of(house, cleanup_policy="settled", segment_bytes="1024")
    await fill(house, partition)
    await tidy(house, partition)
    assert partition.start_offset == 0
    partition.note_settled(10)
    await tidy(house, partition)
    assert 0 < partition.start_offset <= 10
    assert (await all_records(partition))[0].offset == partition.start_offset
    assert partition.start_offset in [span.base_offset for span in partition.spans()]


async def test_nothing_goes_while_no_view_reads_it(house) -> None:
    partition = await partition_of(house, cleanup_policy="settled", segment_bytes="1024", retention_ms="1000")
    await fill(house, partition)
    house.clock.advance(100 * DAY_MS)
    await tidy(house, partition)
    assert partition.start_offset == 0
    partition.note_settled(20)
    partition.note_settled(None)  # the last view was deleted
    await tidy(house, partition)
    assert partition.start_offset == 0


async def test_settled_and_old_go_together(house) -> None:
    partition = await partition_of(house, cleanup_policy="delete,settled", segment_bytes="1024", retention_ms="1000")
    await fill(house, partition)
    partition.note_settled(0)
    await tidy(house, partition)
    house.clock.advance(5000)
    await tidy(house, partition)
    await tidy(house, partition)
    assert partition.start_offset > 0


async def test_what_is_settled_stays_where_the_policy_does_not_say_so(house) -> None:
    partition = await partition_of(house, segment_bytes="1024")
    await fill(house, partition)
    partition.note_settled(20)
    await tidy(house, partition)
    assert partition.start_offset == 0


async def test_the_open_segment_is_closed_when_all_of_it_is_settled(house, monkeypatch) -> None:
    monkeypatch.setattr(retention, "SETTLED_ROLL_ALL_BYTES", 2000)
    partition = await partition_of(house, cleanup_policy="settled")
    await fill(house, partition, 3)
    partition.note_settled(3)
    await tidy(house, partition)
    assert (partition.start_offset, len(partition.spans())) == (0, 1)  # too little to bother
    await fill(house, partition, 5)
    partition.note_settled(8)
    await tidy(house, partition)
    assert partition.start_offset == 8
    assert sum(span.size_bytes for span in partition.spans()) == 0
    assert await put(partition, batch_of(b"next")) == 8


async def test_a_busy_segment_is_closed_when_much_of_it_is_settled(house, monkeypatch) -> None:
    monkeypatch.setattr(retention, "SETTLED_ROLL_BYTES", 4000)
    partition = await partition_of(house, cleanup_policy="settled")
    await fill(house, partition)
    partition.note_settled(5)
    await tidy(house, partition)
    assert len(partition.spans()) == 1
    partition.note_settled(15)
    await tidy(house, partition)
    assert (partition.start_offset, partition.spans()[0].closed) == (0, True)
    await fill(house, partition, 1)
    partition.note_settled(20)
    await tidy(house, partition)
    assert partition.start_offset == 20


async def test_attention_is_called_for_when_there_is_something_to_free(house, monkeypatch) -> None:
    monkeypatch.setattr(retention, "SETTLED_ROLL_ALL_BYTES", 2000)
    partition = await partition_of(house, cleanup_policy="settled")
    await fill(house, partition, 10)
    called = []
    partition.attend = called.append
    partition.note_settled(5)
    assert called == []
    partition.note_settled(10)
    assert called == [partition]


@pytest.mark.parametrize("policy", ["settled", "delete,settled", "settled, delete"])
def test_policies_that_may_stand_together(policy: str) -> None:
    parsed = topic_settings({"cleanup.policy": policy})
    assert parsed.settled and parsed.deleted == ("delete" in policy) and not parsed.compacted


def test_what_is_compacted_is_not_settled() -> None:
    with pytest.raises(InvalidSetting, match="settled"):
        topic_settings({"cleanup.policy": "compact,settled"})


def test_the_guarantee_of_a_topic_is_one_of_three() -> None:
    assert topic_settings({}).guarantee == "at-least-once"
    assert topic_settings({"delivery.guarantee": "exactly-once"}).guarantee == "exactly-once"
    with pytest.raises(InvalidSetting, match="at-most-once"):
        topic_settings({"delivery.guarantee": "perhaps"})
