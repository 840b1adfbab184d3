"""Consumers that come and go while their views are paused, purged, configured and deleted, and their topics with them.

Whatever happens, everyone gets an answer that names what happened, the server's log stays free of surprises, and the
server ends cleanly when it is told to, within its time, whoever waits for a message.
"""

import asyncio
import contextlib
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest

import penstock
from penstock.testing.server import Server
from servers import StartServer

CHAOS_S = 8.0
DRAIN_S = 5
VIEWS = ("a", "b", "c")
SETTINGS = [
    {"ordered_by_key": True, "lease_ms": 300},
    {"max_priority": 9, "max_attempts": 2, "retry_initial_ms": 0},
    {"single_active": True},
    {"guarantee": "at-most-once"},
    {"delay_ms": 50, "ttl_ms": 2_000},
    {"max_in_flight": 5, "dead_letter": ""},
]
# What somebody may be told whose view or topic goes while it is used.
EXPECTED = (
    penstock.UnknownView,
    penstock.UnknownTopic,
    penstock.ViewExists,
    penstock.TopicExists,
    penstock.LeaseLost,
    penstock.StorageFailed,  # of an append under way when its topic was deleted
)


def surprises(server: Server) -> list[str]:
    return re.findall(r".*(?:Traceback|never retrieved|\bERROR\b|Error:|exception).*", server.log_text())


@pytest.fixture
async def server(start_server: StartServer) -> AsyncIterator[Server]:
    server = start_server(drain_timeout_s=DRAIN_S)
    yield server
    if server.is_running:
        begun_s = time.monotonic()
        await asyncio.to_thread(server.stop)
        assert time.monotonic() - begun_s < DRAIN_S + 10
    assert not surprises(server), "\n".join(surprises(server)[:20])


class Chaos:
    def __init__(self, server: Server, topic: str, seed: int) -> None:
        self.server, self.topic, self.dice = server, topic, random.Random(seed)
        self.until_s = time.monotonic() + CHAOS_S
        self.got = Counter[str]()
        self.told = Counter[str]()

    def view(self) -> str:
        return self.dice.choice(VIEWS)

    async def again_and_again(self, deed: Callable[[], Awaitable[None]]) -> None:
        while time.monotonic() < self.until_s:
            try:
                async with asyncio.timeout(20):
                    await deed()
            except EXPECTED as error:
                self.told[type(error).__name__] += 1
                await asyncio.sleep(0.01)

    # -- those who consume ------------------------------------------------------------------------------------------

    async def consume(self) -> None:
        """Come, take some, settle some of that, and leave: in good order, or by hanging up."""
        client = self.server.client(timeout_s=15)
        hangs_up = self.dice.random() < 0.4
        try:
            await client.connect()
            subscription = client.subscribe(self.topic, "queue", name=self.view(), credit=self.dice.randint(1, 50))
            for _ in range(self.dice.randint(0, 5)):
                some = await subscription.take(self.dice.randint(1, 20), timeout_s=0.2)
                self.got["pushed"] += len(some)
                verb = self.dice.choice(["ack", "ack", "ack", "nack", "reject", "release", "extend"])
                settled = subscription.settle(some, verb)  # type: ignore[arg-type]
                if self.dice.random() < 0.7:
                    await settled
        finally:
            if hangs_up and client._opened is not None and (connection := client._opened[0].connection) is not None:
                connection._transport.abort()  # type: ignore[union-attr]
            await client.close()

    async def lease_by_http(self) -> None:
        base = f"{self.server.http}/v1/topics/{self.topic}/queues/{self.view()}"
        wait_ms = self.dice.choice([0, 100, 5_000])
        impatient_s = self.dice.choice([0.05, 0.3, 10.0])
        async with httpx.AsyncClient(timeout=httpx.Timeout(impatient_s)) as http:
            with contextlib.suppress(httpx.TimeoutException):
                answer = await http.post(f"{base}/lease", json={"limit": 10, "wait_ms": wait_ms})
                if answer.status_code == 404:
                    return
                receipts = [message["receipt"] for message in answer.raise_for_status().json()["messages"]]
                self.got["leased"] += len(receipts)
                if receipts and self.dice.random() < 0.7:
                    verb = self.dice.choice(["ack", "nack", "reject", "extend"])
                    answer = await http.post(f"{base}/{verb}", json={"receipts": receipts})
                    assert answer.status_code in (200, 404), answer.text

    async def type_by_hand(self) -> None:
        host, port = self.server.line.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(f"SUBSCRIBE {self.topic}/queue/{self.view()} credit=3\r\n".encode())
            for _ in range(self.dice.randint(0, 6)):
                line = await asyncio.wait_for(reader.readuntil(b"\r\n"), 0.2)
                if line.startswith(b"MSG"):
                    await reader.readexactly(int(line.split()[2]) + 2)
                    self.got["typed"] += 1
                    writer.write(self.dice.choice([b"ACK ", b"NACK ", b"REJECT "]) + line.split()[1] + b"\r\n")
        except (TimeoutError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close() if self.dice.random() < 0.5 else writer.transport.abort()

    # -- those who look after it ------------------------------------------------------------------------------------

    async def publish(self, client: penstock.Client) -> None:
        messages = [
            penstock.Outgoing(f"{at}", key=f"{at % 7}", priority=at % 10, delay_s=0.1 if at % 5 == 0 else None)
            for at in range(self.dice.randint(1, 100))
        ]
        await client.publish_many(self.topic, messages)
        await asyncio.sleep(0.02)

    async def look_after(self, client: penstock.Client) -> None:
        view, dice = self.view(), self.dice
        deed = dice.choice(
            ["make", "make", "make", "delete", "purge", "pause", "set", "set", "redrive", "peek", "list"]
        )
        if deed == "make":
            await client.create_queue(self.topic, view, **dice.choice(SETTINGS))
        elif deed == "delete":
            await client.delete_queue(self.topic, view)
        elif deed == "purge":
            await client.purge_queue(self.topic, view)
        elif deed == "pause":
            await client.pause_queue(self.topic, view)
            await asyncio.sleep(0.05)
            await client.resume_queue(self.topic, view)
        elif deed == "set":
            await client.configure_queue(self.topic, view, **dice.choice(SETTINGS))
        elif deed == "redrive":
            await client.redrive_queue(self.topic, view, limit=50)
        elif deed == "grow":
            await client.alter_topic(self.topic, partitions=(await client.topic(self.topic)).partitions + 1)
        elif deed == "peek":
            await client.peek_queue(self.topic, view)
        else:
            await client.queues(self.topic)
        await asyncio.sleep(dice.random() * 0.05)

    async def end_the_topic(self, client: penstock.Client) -> None:
        await asyncio.sleep(0.7 + self.dice.random())
        await client.delete_topic(self.topic)


@pytest.mark.parametrize("seed", [1, 2])
async def test_chaos(server: Server, topic: str, seed: int) -> None:
    chaos = Chaos(server, topic, seed)
    async with server.client(timeout_s=15) as client, server.client(timeout_s=15) as keeper:
        async with asyncio.TaskGroup() as crowd:
            for deed in [chaos.consume] * 6 + [chaos.lease_by_http] * 3 + [chaos.type_by_hand] * 3:
                crowd.create_task(chaos.again_and_again(deed))
            crowd.create_task(chaos.again_and_again(lambda: chaos.publish(client)))
            for _ in range(2):
                crowd.create_task(chaos.again_and_again(lambda: chaos.look_after(keeper)))
            crowd.create_task(chaos.again_and_again(lambda: chaos.end_the_topic(keeper)))
        assert min(chaos.got["pushed"], chaos.got["leased"], chaos.got["typed"]) > 0, (chaos.got, chaos.told)

        # Nobody is left behind, and everything still works.
        for queue in await client.queues():
            await until_alone(client, queue.topic, queue.name)
        await client.create_topic("calm")
        await client.publish_many("calm", [str(number) for number in range(100)])
        async with client.subscribe("calm", "queue") as calm:
            for number in range(100):
                message = await asyncio.wait_for(anext(calm), 10)
                assert message.text == str(number)
                await message.ack()
        assert (await client.queue("calm")).processed == 100


async def until_alone(client: penstock.Client, topic: str, view: str) -> None:
    deadline_s = time.monotonic() + 10
    while True:
        try:
            consumers = (await client.queue(topic, view)).counts["consumers"]
        except penstock.UnknownView:
            return
        if consumers == 0:
            return
        assert time.monotonic() < deadline_s, f"{consumers} consumers of {topic}/{view} are still there"
        await asyncio.sleep(0.02)


async def test_a_server_that_is_told_to_stop_while_everybody_waits_stops(server: Server, topic: str) -> None:
    """Waiting leases get their answer, subscribers their farewell, and nobody's work is lost."""
    base = f"{server.http}/v1/topics/{topic}/queues"
    host, port = server.line.split(":")
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=30))
        for view in VIEWS:
            (await http.post(base, json={"name": view})).raise_for_status()
        once = {"name": "once", "settings": {"guarantee": "at-most-once"}}
        (await http.post(base, json=once)).raise_for_status()
        waiting = [
            asyncio.ensure_future(http.post(f"{base}/{view}/lease", json={"limit": 5, "wait_ms": 25_000}))
            for view in (*VIEWS, "once")
            for _ in range(5)
        ]
        clients = [await stack.enter_async_context(server.client(timeout_s=2, connect_timeout_s=2)) for _ in range(5)]
        readers = []
        for client in clients:
            for view in (*VIEWS, "once"):
                subscription = client.subscribe(topic, "queue", name=view)
                await subscription.start()
                readers.append(asyncio.ensure_future(subscription.take()))
        typed = []
        for view in VIEWS:
            reader, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
            writer.write(f"SUBSCRIBE {topic}/queue/{view}\r\n".encode())
            assert (await reader.readuntil(b"\r\n")).startswith(b"OK")
            typed.append(asyncio.ensure_future(reader.read()))
        begun_s = time.monotonic()
        await asyncio.to_thread(server.stop)
        assert time.monotonic() - begun_s < DRAIN_S + 5
        for answer in await asyncio.wait_for(asyncio.gather(*waiting), 10):
            assert answer.status_code == 200
            assert answer.json()["messages"] == []
        await asyncio.wait_for(asyncio.gather(*typed), 10)
        for outcome in await asyncio.wait_for(asyncio.gather(*readers, return_exceptions=True), 15):
            assert outcome == [] or isinstance(outcome, penstock.PenstockError), outcome
