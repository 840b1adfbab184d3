"""The catalogue: topics come, change and go, and are there after a restart."""

import asyncio

import pytest
from log_house import all_records, batch_of, put

from penstock.log.settings import SETTINGS, topic_settings
from penstock.model.errors import (
    InvalidPartitions,
    InvalidSetting,
    InvalidTopicName,
    LimitReached,
    TopicExists,
    UnknownTopic,
)


async def test_a_topic_is_found_by_name_and_id(house) -> None:
    topic = await house.topics.create("orders", 3, {"retention.ms": "5000"})
    assert house.topics.get("orders") is topic is house.topics.get_by_id(topic.id)
    assert (topic.partition_count, topic.settings.retention_ms) == (3, 5000)


async def test_a_name_is_taken_once_even_by_two_at_a_time(house) -> None:
    results = await asyncio.gather(*(house.topics.create("orders", 1, {}) for _ in range(3)), return_exceptions=True)
    assert sum(isinstance(r, TopicExists) for r in results) == 2


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "x" * 250])
async def test_names_that_kafka_does_not_allow_are_refused(house, name: str) -> None:
    with pytest.raises(InvalidTopicName):
        await house.topics.create(name, 1, {})


async def test_bounds_are_named(house) -> None:
    house.topics.max_topics = len(house.topics.by_name)
    with pytest.raises(LimitReached, match="max_topics"):
        await house.topics.create("orders", 1, {})
    house.topics.max_topics += 10
    house.topics.max_partitions = house.topics.partition_count + 5
    with pytest.raises(LimitReached, match="max_partitions"):
        await house.topics.create("orders", 6, {})
    with pytest.raises(InvalidPartitions):
        await house.topics.create("orders", 0, {})


async def test_everything_is_there_after_a_restart(disk_house) -> None:
    topics = disk_house.topics
    await topics.create("kept", 2, {"cleanup.policy": "compact"})
    await topics.create("altered", 1, {})
    await topics.alter("altered", {"retention.ms": "77"})
    await topics.add_partitions("altered", 5)
    await topics.create("gone", 1, {})
    await topics.delete("gone")
    kept = topics.get("kept")
    await put(await topics.open(kept, 1), batch_of(b"hello"))
    await topics.close()

    topics = await disk_house.open()
    assert topics.get("kept").id == kept.id
    assert topics.get("kept").settings.compacted
    assert (topics.get("altered").partition_count, topics.get("altered").settings.retention_ms) == (5, 77)
    with pytest.raises(UnknownTopic):
        topics.get("gone")
    records = await all_records(await topics.open(topics.get("kept"), 1))
    assert [r.value for r in records] == [b"hello"]


async def test_a_topic_created_again_does_not_meet_its_former_self(house) -> None:
    topics = house.topics
    old = await topics.create("orders", 1, {})
    partition = await topics.open(old, 0)
    await put(partition, batch_of(b"old"))
    await topics.delete("orders")
    assert partition.closed
    new = await topics.create("orders", 1, {})
    assert new.id != old.id
    assert (await topics.open(new, 0)).durable_end == 0


async def test_a_sweep_removes_only_what_belongs_to_no_topic(disk_house) -> None:
    topics = disk_house.topics
    ledger = await topics.open_ledger("__penstock_test")
    await ledger.record(b"k", b"v")
    topic = await topics.create("orders", 1, {})
    await put(await topics.open(topic, 0), batch_of(b"a"))
    await topics.sweep()
    await topics.close()
    assert len(list((disk_house.data / "topics").iterdir())) == 3
    topics = await disk_house.open()
    del topics.by_id[topics.by_name.pop("orders").id]  # as if the fact of its deletion had just been recorded
    await topics.open_ledger("__penstock_test")
    await topics.sweep()
    await topics.close()
    assert len(list((disk_house.data / "topics").iterdir())) == 2
    topics = await disk_house.open()
    assert [fact async for fact in (await topics.open_ledger("__penstock_test")).replay()] == [(b"k", b"v")]


async def test_altering_reaches_partitions_that_are_open(house) -> None:
    topic = await house.topics.create("orders", 1, {})
    partition = await house.topics.open(topic, 0)
    await house.topics.alter("orders", {"max.message.bytes": "100"})
    assert partition.settings.max_message_bytes == topic.settings.max_message_bytes == 100
    with pytest.raises(InvalidSetting, match="storage"):
        await house.topics.alter("orders", {"storage": "memory"})


async def test_two_who_open_a_partition_share_it(house) -> None:
    topic = await house.topics.create("orders", 1, {})
    one, two = await asyncio.gather(house.topics.open(topic, 0), house.topics.open(topic, 0))
    assert one is two


def test_an_unsupported_setting_is_refused_with_what_is_supported() -> None:
    with pytest.raises(InvalidSetting, match=r"retention\.ms"):
        topic_settings({"retention.millis": "1"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "soon"),
        ("retention.ms", "-2"),
        ("cleanup.policy", "burn"),
        ("segment.bytes", "1"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("durability", "maybe"),
        ("storage", "tape"),
        ("min.insync.replicas", "2"),
    ],
)
def test_a_bad_value_is_refused_with_name_value_and_what_is_allowed(name: str, value: str) -> None:
    with pytest.raises(InvalidSetting) as raised:
        topic_settings({name: value})
    assert name in str(raised.value)
    assert value in str(raised.value)
    assert SETTINGS[name].allowed in str(raised.value)


def test_every_default_is_allowed() -> None:
    assert topic_settings({name: setting.default for name, setting in SETTINGS.items()}).retention_ms > 0


def test_a_short_retention_closes_segments_in_time() -> None:
    assert topic_settings({"retention.ms": "300000"}).spec.segment_ms == 300_000
