"""Queue views over the text protocol: each message with one consumer, settled by the id it came with."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from line_house import line_server
from line_talk import Consumer, Message

from penstock.broker.route import Binding
from penstock.doors.line import text, text_settle
from penstock.doors.line.door import LineDoor
from penstock.security.principal import ANONYMOUS

NewTalk = Callable[[], Awaitable[Consumer]]


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[LineDoor]:
    async with line_server(tmp_path) as (_, door):
        yield door


@pytest.fixture
async def new_talk(door: LineDoor) -> AsyncIterator[NewTalk]:
    opened: list[Consumer] = []

    async def make() -> Consumer:
        opened.append(await Consumer.open(door.listener.port))
        return opened[-1]

    yield make
    for talk in opened:
        await talk.close()


@pytest.fixture
async def talk(new_talk: NewTalk) -> Consumer:
    return await new_talk()


async def publish(talk: Consumer, topic: str, count: int) -> None:
    talk.send(b"".join(b"PUB %b %d\r\n%d" % (topic.encode(), len(str(n)), n) for n in range(count)))
    await talk.lines(count)


async def test_a_message_is_handed_out_and_settled_by_its_id(door: LineDoor, talk: Consumer) -> None:
    assert await talk.ask("SUBSCRIBE orders/queue") == "OK orders/queue"
    assert await talk.ask("PUBLISH orders hello, world") == "OK 0"
    assert await talk.message() == Message("orders:0:0", b"hello, world")
    counts = door.broker.queues.describe(ANONYMOUS, "orders", "queue").counts
    assert (counts.pending, counts.processing) == (0, 1)
    assert await talk.ask("ACK orders:0:0") == "OK"
    counts = door.broker.queues.describe(ANONYMOUS, "orders", "queue").counts
    assert (counts.pending, counts.processing, counts.processed) == (0, 0, 1)
    assert await talk.ask("ACK orders:0:0") == (
        "ERR lease-lost no message orders:0:0 waits to be settled on this connection"
    )


async def test_a_queue_is_counted(talk: Consumer) -> None:
    await publish(talk, "orders", 3)
    assert await talk.ask("SUBSCRIBE orders/queue credit=1") == "OK orders/queue"
    await talk.message()
    assert await talk.ask("STATUS orders/queue") == (
        "OK pending=2 processing=1 processed=0 delayed=0 dead=0 consumers=1"
    )
    assert (await talk.ask("STATUS orders/queue/other")).startswith("ERR unknown-view ")
    assert (await talk.ask("STATUS orders/log")).startswith("ERR invalid-request only queues are counted")


async def test_credit_bounds_what_is_unsettled(talk: Consumer) -> None:
    await publish(talk, "orders", 4)
    assert await talk.ask("SUBSCRIBE orders/queue credit=2") == "OK orders/queue"
    assert [(await talk.message()).name for _ in range(2)] == ["orders:0:0", "orders:0:1"]
    assert await talk.ask("PING") == "PONG"
    assert talk.undelivered == 0
    assert await talk.ask("ACK orders:0:1") == "OK"
    assert (await talk.message()).name == "orders:0:2"
    assert await talk.ask("PING") == "PONG"
    assert talk.undelivered == 0


async def test_many_consumers_share_the_work(new_talk: NewTalk) -> None:
    workers = [await new_talk() for _ in range(4)]
    for worker in workers:
        assert await worker.ask("SUBSCRIBE orders/queue credit=1") == "OK orders/queue"
    await publish(await new_talk(), "orders", 40)
    done: list[bytes] = []

    async def work(worker: Consumer) -> None:
        while len(done) < 40:
            message = await worker.message()
            done.append(message.payload)
            worker.send(f"ACK {message.name}\r\n")
            assert await worker.line() == "OK"

    tasks = [asyncio.create_task(work(worker)) for worker in workers]
    async with asyncio.timeout(15):
        while len(done) < 40:
            await asyncio.wait(tasks, timeout=0.01)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(map(int, done)) == list(range(40))


async def test_what_a_consumer_had_goes_to_another_when_it_leaves(new_talk: NewTalk) -> None:
    first, second = await new_talk(), await new_talk()
    await publish(first, "orders", 3)
    assert await first.ask("SUBSCRIBE orders/queue") == "OK orders/queue"
    assert [(await first.message()).payload for _ in range(3)] == [b"0", b"1", b"2"]
    assert await first.ask("ACK orders:0:1") == "OK"
    assert await second.ask("SUBSCRIBE orders/queue") == "OK orders/queue"
    await first.close()
    assert {(await second.message()).payload for _ in range(2)} == {b"0", b"2"}


async def test_unsubscribing_gives_back_what_is_unsettled(new_talk: NewTalk) -> None:
    first, second = await new_talk(), await new_talk()
    await publish(first, "orders", 1)
    assert await first.ask("SUBSCRIBE orders/queue") == "OK orders/queue"
    assert (await first.message()).name == "orders:0:0"
    assert await first.ask("UNSUBSCRIBE orders/queue") == "OK orders/queue"
    assert await second.ask("SUBSCRIBE orders/queue meta=yes") == "OK orders/queue"
    assert (await second.message()).payload == b"0"
    assert (await first.ask("ACK orders:0:0")).startswith("ERR lease-lost ")


async def test_a_failed_message_comes_again_and_tells_its_attempt(talk: Consumer) -> None:
    await publish(talk, "orders", 1)
    assert await talk.ask("SUBSCRIBE orders/queue meta=yes") == "OK orders/queue"
    assert "attempt=1" in (await talk.message()).meta
    assert await talk.ask("NACK orders:0:0 1") == "OK"
    assert "attempt=2" in (await talk.message()).meta
    assert await talk.ask("RELEASE orders:0:0") == "OK"
    assert "attempt=2" in (await talk.message()).meta
    assert await talk.ask("EXTEND orders:0:0 60000") == "OK"
    assert await talk.ask("ACK orders:0:0") == "OK"


async def test_a_lease_that_ends_brings_the_message_back(talk: Consumer) -> None:
    await publish(talk, "orders", 1)
    answer = await talk.ask("SUBSCRIBE orders/queue lease=20 retry_initial=1 meta=yes")
    assert answer == "OK orders/queue"
    assert "attempt=1" in (await talk.message()).meta
    assert "attempt=2" in (await talk.message()).meta


async def test_what_is_rejected_is_found_among_the_dead_letters(talk: Consumer) -> None:
    assert await talk.publish("orders", b"bad", "key=k7") == "OK 0"
    assert await talk.ask("SUBSCRIBE orders/queue") == "OK orders/queue"
    await talk.message()
    assert await talk.ask("REJECT orders:0:0") == "OK"
    assert await talk.ask("SUBSCRIBE orders.queue.dead/log meta=yes") == "OK orders.queue.dead/log"
    letter = await talk.message()
    assert letter.payload == b"bad"
    assert "key=k7" in letter.meta
    assert "header.penstock-dead-reason=rejected" in letter.meta
    assert "header.penstock-dead-topic=orders" in letter.meta


async def test_views_have_names_and_a_state_of_their_own(talk: Consumer) -> None:
    await publish(talk, "orders", 1)
    for address, name in (
        ("orders/queue", "orders:0:0"),
        ("orders/queue/mail", "orders:0:0@mail"),
        ("orders/queue view=stock", "orders:0:0@stock"),
    ):
        assert (await talk.ask(f"SUBSCRIBE {address}")).startswith("OK orders/queue")
        assert (await talk.message()).name == name
    for name in ("orders:0:0@stock", "orders:0:0", "orders:0:0@mail"):
        assert await talk.ask(f"ACK {name}") == "OK"
    assert await talk.ask("UNSUBSCRIBE orders/queue/mail") == "OK orders/queue/mail"


async def test_a_view_of_many_topics_names_where_a_message_came_from(door: LineDoor, talk: Consumer) -> None:
    routers = door.broker.routers
    assert await talk.ask("SUBSCRIBE all/queue") == "OK all/queue"
    await routers.create(ANONYMOUS, "events", "fanout")
    await routers.bind(ANONYMOUS, "events", Binding(to="all/queue"))
    assert await talk.ask("PUBLISH events hello") == "OK 0"
    message = await talk.message()
    assert message == Message("events:0:0@all/queue", b"hello")
    assert await talk.ask(f"ACK {message.name}") == "OK"


async def test_at_most_once_needs_no_ack_and_flows_on(talk: Consumer) -> None:
    await publish(talk, "orders", 50)
    assert await talk.ask("SUBSCRIBE orders/queue guarantee=at-most-once credit=3") == "OK orders/queue"
    assert [(await talk.message()).payload for _ in range(50)] == [b"%d" % n for n in range(50)]
    assert (await talk.ask("ACK orders:0:0")).startswith("ERR lease-lost ")


async def test_a_view_that_is_there_must_be_as_it_is_asked_for(talk: Consumer, new_talk: NewTalk) -> None:
    assert await talk.ask("SUBSCRIBE orders/queue max_attempts=3 pattern=a.*") == "OK orders/queue"
    other = await new_talk()
    assert await other.ask("SUBSCRIBE orders/queue max_attempts=4") == (
        "ERR view-exists orders/queue is there already, with max_attempts=3: "
        "leave max_attempts away or name another view"
    )
    assert (await other.ask("SUBSCRIBE orders/queue pattern=b.*")).startswith("ERR view-exists ")
    assert await other.ask("SUBSCRIBE orders/queue max_attempts=3 pattern=a.*") == "OK orders/queue"
    assert (await talk.ask("SUBSCRIBE new/queue max_attempts=many")).startswith("ERR invalid-request ")
    assert (await talk.ask("SUBSCRIBE new/queue guarantee=perhaps")).startswith("ERR invalid-request ")
    assert (await talk.ask("SUBSCRIBE new/queue credit=0")).startswith("ERR invalid-request ")


async def test_a_new_view_may_begin_at_the_end(talk: Consumer) -> None:
    await publish(talk, "orders", 3)
    assert await talk.ask("SUBSCRIBE orders/queue/late from=latest") == "OK orders/queue/late"
    assert await talk.ask("PUBLISH orders new") == "OK 3"
    assert await talk.message() == Message("orders:0:3@late", b"new")


async def test_priorities_delays_and_keys_steer_the_queue(talk: Consumer) -> None:
    await talk.publish("jobs", b"low", "priority=1")
    await talk.publish("jobs", b"high", "priority=9")
    await talk.publish("jobs", b"later", "priority=9 delay=100")
    assert await talk.ask("SUBSCRIBE jobs/queue max_priority=9 credit=1") == "OK jobs/queue"
    for expected in (b"high", b"low", b"later"):
        message = await talk.message()
        assert message.payload == expected
        assert await talk.ask(f"ACK {message.name}") == "OK"


async def test_acks_by_the_thousand_are_answered_in_order(talk: Consumer) -> None:
    count = 5_000
    await publish(talk, "orders", count)
    assert await talk.ask("SUBSCRIBE orders/queue credit=5000") == "OK orders/queue"
    names = [(await talk.message()).name for _ in range(count)]
    talk.send("".join(f"ACK {name}\r\n" for name in names[: count // 2]))
    talk.send("ACK nonsense\r\n")
    talk.send("".join(f"ACK {name}\r\n" for name in names[count // 2 :]))
    answers = await talk.lines(count + 1)
    assert answers.pop(count // 2).startswith("ERR lease-lost no message nonsense ")
    assert answers == ["OK"] * count


async def test_a_view_that_is_deleted_ends_its_subscriptions(door: LineDoor, talk: Consumer) -> None:
    assert await talk.ask("SUBSCRIBE orders/queue") == "OK orders/queue"
    await door.broker.queues.delete(ANONYMOUS, "orders", "queue")
    assert (await talk.line()).startswith("ENDED orders/queue unknown-view ")
    assert await talk.ask("SUBSCRIBE orders/queue") == "OK orders/queue"


async def test_ids_that_are_remembered_are_bounded(talk: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_settle, "MAX_UNSETTLED", 2)
    await publish(talk, "orders", 3)
    assert await talk.ask("SUBSCRIBE orders/queue") == "OK orders/queue"
    for _ in range(3):
        await talk.message()
    assert (await talk.ask("ACK orders:0:0")).startswith("ERR lease-lost ")
    assert await talk.ask("ACK orders:0:2") == "OK"


async def test_a_consumer_that_takes_but_does_not_read_is_closed_and_others_get_it(
    talk: Consumer, new_talk: NewTalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "MAX_UNREAD_BYTES", 1 << 20)
    payload = b"x" * 100_000
    talk.send((b"PUB orders 100000\r\n" + payload) * 200)
    await talk.lines(200)
    deaf = await new_talk()
    deaf.reader._limit = 1  # type: ignore[attr-defined]
    deaf.send("SUBSCRIBE orders/queue credit=200\r\n")
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        while True:
            await deaf.exactly(10_000)
            assert await talk.ask("PING") == "PONG"
    assert await talk.ask("SUBSCRIBE orders/queue credit=1") == "OK orders/queue"
    assert (await talk.message()).payload == payload


async def test_a_lost_consumer_has_failed_and_one_that_took_its_leave_has_not(new_talk: NewTalk) -> None:
    keeper = await new_talk()
    await publish(keeper, "orders", 1)
    for parting, attempt in (("QUIT", 1), ("UNSUBSCRIBE orders/queue", 1), ("", 1), ("", 2)):
        talk = await new_talk()
        assert await talk.ask("SUBSCRIBE orders/queue meta=yes") == "OK orders/queue"
        assert (await talk.message()).meta.endswith(f"attempt={attempt}")
        if parting:
            await talk.ask(parting)
        talk.writer.close()
    assert await keeper.ask("SUBSCRIBE orders/queue meta=yes") == "OK orders/queue"
    assert (await keeper.message()).meta.endswith("attempt=3")
