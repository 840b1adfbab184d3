"""The synchronous face of the Python client, and a server in one line for users' tests."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import penstock
from penstock.testing import Proxy, Server
from penstock.wire.native.messages import Publish

WAIT_S = 30.0


@pytest.fixture
def client(server: Server) -> Iterator[penstock.SyncClient]:
    with server.sync_client() as connected:
        yield connected


def numbers(*bounds: int) -> list[str]:
    return [str(number) for number in range(*bounds)]


def test_it_publishes_and_reads(client: penstock.SyncClient, topic: str) -> None:
    assert client.publish(topic, {"order_id": 101}, key="101") == penstock.Placed(0, 0)
    assert client.publish_many(topic, numbers(250)) == [penstock.Placed(0, offset) for offset in range(1, 251)]
    with client.subscribe(topic) as subscription:
        first = next(iter(subscription))
        assert first.json() == {"order_id": 101}
        came = []
        for message in subscription:
            came.append(message.text)
            if len(came) == 250:
                break
    assert came == numbers(250)


def test_futures_keep_the_order(client: penstock.SyncClient, topic: str) -> None:
    futures = [client.publish_nowait(topic, str(number)) for number in range(500)]
    assert [future.result(WAIT_S).offset for future in futures] == list(range(500))
    client.flush()
    assert client.buffered_bytes == 0


def test_a_queue_is_consumed_one_by_one_and_in_batches(client: penstock.SyncClient, topic: str) -> None:
    client.publish_many(topic, numbers(400))
    seen = []
    with client.subscribe(topic, "queue") as subscription:
        for message in subscription:
            seen.append(message.text)
            message.ack()
            if len(seen) == 50:
                break
        assert client.queue(topic).processed == 50
        for batch in subscription.batches(100):
            seen += [message.text for message in batch]
            subscription.ack(batch)
            if len(seen) >= 399:
                break
        if len(seen) == 399:
            subscription.take(1, WAIT_S)[0].ack_nowait().result(WAIT_S)
            seen.append("399")
    assert seen == numbers(400)
    assert client.queue(topic).pending == 0


def test_what_was_not_looked_at_is_given_back(client: penstock.SyncClient, topic: str) -> None:
    client.publish_many(topic, numbers(50))
    with client.subscribe(topic, "queue") as subscription:
        next(subscription).ack()  # others have crossed over with it
    with client.subscribe(topic, "queue") as subscription:
        messages: list[penstock.SyncMessage] = []
        while len(messages) < 49:
            messages += subscription.take(timeout_s=WAIT_S)
        assert [message.text for message in messages] == numbers(1, 50)
        assert {message.attempt for message in messages} == {1}, "nobody tried them"


def test_messages_are_settled_in_every_way(client: penstock.SyncClient, topic: str) -> None:
    client.publish(topic, "x")
    with client.subscribe(topic, "queue") as subscription:
        message = next(subscription)
        message.extend(lease_s=30)
        message.nack(delay_s=0)
        message = next(subscription)
        assert message.attempt == 2
        message.release()
        message = next(subscription)
        subscription.nack([message], delay_s=0)
        message = next(subscription)
        subscription.extend([message])
        subscription.release([message])
        next(subscription).reject()
        [dead] = client.subscribe(f"{topic}.queue.dead").take(timeout_s=WAIT_S)
        assert dead.text == "x"
        client.publish(topic, "y")
        subscription.reject([next(subscription)])


def test_a_step_settles_and_publishes(client: penstock.SyncClient, topic: str) -> None:
    client.publish(topic, "in")
    with client.subscribe(topic, "queue") as subscription:
        message = next(subscription)
        with subscription.step("once") as step:
            step.publish(f"{topic}-out", "out")
            step.ack(message)
        assert not step.repeated
        with subscription.step("once") as step:
            step.publish(f"{topic}-out", "out")
            step.ack(message)
        assert step.repeated
    assert client.offsets(f"{topic}-out").end == 1


def test_a_group_commits_what_was_seen(client: penstock.SyncClient, topic: str, group: str) -> None:
    client.publish_many(topic, numbers(30))
    with client.subscribe(topic, group=group, auto_commit=False) as subscription:
        for _ in range(10):
            message = next(subscription)
        subscription.commit()  # more has crossed over than was seen
        assert client.committed(group) == {(topic, 0): 10}
        subscription.commit(message)
        with pytest.raises(TypeError, match="queue"):
            message.ack()
    with client.subscribe(topic, group=group) as subscription:
        assert next(subscription).text == "10"


def test_everything_can_be_administered(client: penstock.SyncClient, topic: str) -> None:
    client.create_topic(topic, 2, {"retention.ms": "60000"})
    client.alter_topic(topic, {"retention.ms": None}, partitions=3)
    assert client.topic(topic) == penstock.Topic(topic, 3, {})
    assert topic in [one.name for one in client.topics()]
    client.create_queue(topic, "mail", max_attempts=2)
    client.configure_queue(topic, "mail", max_attempts=3)
    client.publish(topic, "x", partition=1)
    assert [message.text for message in client.peek_queue(topic, "mail")] == ["x"]
    client.pause_queue(topic, "mail")
    client.resume_queue(topic, "mail")
    assert client.purge_queue(topic, "mail") == 1
    assert client.redrive_queue(topic, "mail") == 0
    assert [queue.name for queue in client.queues(topic)] == ["mail"]
    client.delete_queue(topic, "mail")
    client.create_router(topic, "direct")
    client.bind(topic, f"{topic}-copy", key="k")
    client.unbind(topic, f"{topic}-copy", key="k")
    assert topic in [router.name for router in client.routers()]
    client.delete_router(topic)
    client.commit(f"{topic}-group", {(topic, 0): 0})
    client.delete_topic(topic)
    with pytest.raises(penstock.UnknownTopic):
        client.topic(topic)


def test_many_threads_share_a_client(client: penstock.SyncClient, topic: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        offsets = sorted(pool.map(lambda number: client.publish(topic, str(number)).offset, range(400)))
    assert offsets == list(range(400))


def test_a_reader_in_another_thread_ends_when_the_client_closes(server: Server, topic: str) -> None:
    came: list[str] = []
    with server.sync_client() as client:
        subscription = client.subscribe(topic, "pubsub")
        subscription.start()
        thread = threading.Thread(target=lambda: came.extend(message.text for message in subscription))
        thread.start()
        client.publish(topic, "x")
        while not came:
            client.topics()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert came == ["x"]
    with pytest.raises(penstock.ClientClosed):
        client.publish(topic, "late")
    client.close()


def test_it_reconnects_too(server: Server, topic: str) -> None:
    with Proxy(server.line, native=True) as proxy, penstock.SyncClient(proxy.address) as client:
        proxy.lose_replies(Publish.KIND, every=2, limit=5)
        assert [client.publish(topic, str(number)).offset for number in range(40)] == list(range(40))
        assert client.reconnects == 5


def test_a_server_that_is_not_there_is_named() -> None:
    with (
        pytest.raises(penstock.Unreachable, match=r"127\.0\.0\.1:1\b"),
        penstock.SyncClient("127.0.0.1:1", timeout_s=0.2),
    ):
        pass


def test_importing_penstock_imports_no_client() -> None:
    """`penstock serve` starts with this import."""
    said = "import sys, penstock; print(sorted(name for name in sys.modules if name.startswith('penstock')))"
    out = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "['penstock', 'penstock._compiled']"


def test_every_public_name_is_there() -> None:
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None
        assert name in dir(penstock)
    with pytest.raises(AttributeError, match="Nothing"):
        penstock.Nothing  # noqa: B018
