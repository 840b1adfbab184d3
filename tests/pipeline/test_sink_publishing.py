"""One task's writer against a real server: what counts is there once, whatever breaks on the way."""

import pyarrow as pa
import pytest
from sink_stories import ask, is_stable, put, records_in, values_in, writer
from source_topics import create

from penstock.model.errors import RecordTooLarge, StepMismatch, UnknownTopic
from penstock.pipeline import publishing
from penstock.pipeline.link import Link
from penstock.testing.proxy import Proxy
from penstock.testing.server import Server
from penstock.wire.native import messages as wire
from servers import StartServer


def commit(server: Server, step: str, epoch: int, writers: list[int | None], mark: str = "m") -> int:
    named = [one for one in writers if one is not None]
    return int(ask(server, wire.CommitStep(step, epoch, named, mark)).count)


def test_attempts_that_count_are_seen_and_others_are_not(server: Server, topic: str) -> None:
    create(server, topic, 2)
    with Link(server.line, timeout_s=30) as link:
        first, second, lost = (
            writer(link, topic, 0, "0-0"),
            writer(link, topic, 0, "1-0"),
            writer(link, topic, 0, "1-1"),
        )
        put(first, topic, ["a", "b"])
        put(second, topic, ["c"])
        put(lost, topic, ["c"])
        for each in (first, second, lost):
            each.finish()
        assert records_in(server, topic) == []
        assert commit(server, topic, 0, [first.producer_id, second.producer_id]) == 1
        assert values_in(server, topic) == ["a", "b", "c"]
        assert is_stable(server, topic, 0)
        assert is_stable(server, topic, 1)

        again = writer(link, topic, 0, "0-2")
        assert again.is_done()
        assert again.producer_id is None
        assert commit(server, topic, 0, []) == 0
        with pytest.raises(StepMismatch):
            commit(server, topic, 0, [], "another")
    assert values_in(server, topic) == ["a", "b", "c"]


def test_task_without_rows_opens_no_writer(server: Server, topic: str) -> None:
    with Link(server.line, timeout_s=30) as link:
        idle = writer(link, topic, 0)
        idle.add(topic, 0)
        idle.finish()
        assert (idle.producer_id, idle.records) == (None, 0)
        assert commit(server, topic, 0, [None]) == 1


def test_large_values_and_many_partitions_arrive_in_order(server: Server, topic: str) -> None:
    create(server, topic, 3)
    keys = [b"k%d" % (n % 50) for n in range(20_000)]
    values = [b"%06d" % n + b"x" * 400 for n in range(20_000)]
    with Link(server.line, timeout_s=30) as link:
        publisher = writer(link, topic, 0, compression=4)
        for start in range(0, 20_000, 5_000):
            part = slice(start, start + 5_000)
            publisher.add(topic, 5_000, key=pa.array(keys[part]), value=pa.array(values[part]))
        publisher.finish()
        assert publisher.records == 20_000
        commit(server, topic, 0, [publisher.producer_id])
    found = records_in(server, topic)
    assert sorted(record.value or b"" for record in found) == values
    by_key: dict[bytes | None, list[bytes]] = {}
    for record in found:
        by_key.setdefault(record.key, []).append(record.value or b"")
    assert all(held == sorted(held) for held in by_key.values())


def test_server_that_is_killed_meanwhile_gets_each_row_once(fresh_server: Server, topic: str) -> None:
    create(fresh_server, topic, 2)
    values = [f"{n:05}" + "x" * 2_000 for n in range(4_000)]
    with Link(fresh_server.line, timeout_s=30) as link:
        publisher = writer(link, topic, 7, batch_bytes=50_000)
        for start in range(0, 4_000, 500):
            put(publisher, topic, values[start : start + 500])
            if start in (1_000, 2_500):
                fresh_server.kill()
                fresh_server.restart()
        publisher.finish()
        assert commit(fresh_server, topic, 7, [publisher.producer_id]) == 1
    assert values_in(fresh_server, topic) == values


def test_broken_connections_double_and_lose_nothing(server: Server, topic: str) -> None:
    create(server, topic, 2)
    values = [f"{n:05}" + "x" * 2_000 for n in range(4_000)]
    with Proxy(server.line, native=True) as proxy, Link(proxy.address, timeout_s=30) as link:
        requests = proxy.lose_requests(wire.Publish.KIND, every=5, limit=3)
        replies = proxy.lose_replies(wire.Publish.KIND, every=4, limit=3)
        publisher = writer(link, topic, 1, batch_bytes=50_000)
        for start in range(0, 4_000, 200):
            put(publisher, topic, values[start : start + 200])
        publisher.finish()
        assert requests.lost + replies.lost >= 4
        commit(server, topic, 1, [publisher.producer_id])
    assert values_in(server, topic) == values


def test_what_is_too_large_is_told(server: Server, topic: str) -> None:
    create(server, topic, max_message_bytes="1000")
    with Link(server.line, timeout_s=30) as link:
        publisher = writer(link, topic, 0)
        put(publisher, topic, ["x" * 100] * 50)  # one batch would be too large, and it is not one
        publisher.finish()
        put(publisher, topic, ["x" * 5_000])
        with pytest.raises(RecordTooLarge, match=f"{topic}-0: .*max.message.bytes"):
            publisher.finish()
    ask(server, wire.AbortStep(topic, 0))


def test_topic_that_is_not_there_is_made_or_told(start_server: StartServer) -> None:
    server = start_server(auto_create_topics=False)
    with Link(server.line, timeout_s=30) as link:
        with pytest.raises(UnknownTopic, match="penstock topic create new"):
            put(writer(link, "s", 0), "new", ["x"])
        publisher = writer(link, "s", 0, new_topics={"retention.ms": "-1"})
        put(publisher, "new", ["x"])
        publisher.finish()
        commit(server, "s", 0, [publisher.producer_id])
    assert values_in(server, "new") == ["x"]


def test_what_is_on_its_way_is_bounded(server: Server, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create(server, topic, 1)
    with Link(server.line, timeout_s=30) as link:
        publisher = writer(link, topic, 0, batch_bytes=10_000)
        most = 0
        take = publisher._take

        def watched() -> None:
            nonlocal most
            most = max(most, sum(len(sent.batches) for sent in publisher._ahead))
            take()

        monkeypatch.setattr(publisher, "_take", watched)
        for _ in range(10):
            put(publisher, topic, ["x" * 5_000] * 20)
        publisher.finish()
        assert 1 <= most <= publishing.AHEAD_PER_PARTITION
        commit(server, topic, 0, [publisher.producer_id])
    assert len(records_in(server, topic)) == 200
