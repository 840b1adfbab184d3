"""`kill -9` under workers of every kind of queue view, through every door: nothing is lost, doubled or stuck."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from queue_workers import (
    WAIT_S,
    Crew,
    History,
    KeyOrder,
    at_most_once_worker,
    client_worker,
    http_worker,
    is_bad,
    ordered_worker,
    stepping_worker,
    text_worker,
)

import penstock
from penstock.testing.server import Server
from servers import StartServer

ROUNDS = 5
MESSAGES_PER_ROUND = 400
KEYS = 7


class Story:
    """A server that dies again and again, and one who publishes numbers meanwhile."""

    def __init__(self, server: Server, client: penstock.Client, topic: str) -> None:
        self.server, self.client, self.topic = server, client, topic
        self.placed: dict[int, tuple[int, int]] = {}  # number -> partition and offset, as it was acknowledged
        self.keys: dict[bytes, list[int]] = {b"key-%d" % key: [] for key in range(KEYS)}
        self.published = 0

    async def publish(self, count: int, **options: Any) -> None:
        numbers = range(self.published, self.published + count)
        self.published += count
        for number in numbers:
            self.keys[b"key-%d" % (number % KEYS)].append(number)
        places = await asyncio.gather(
            *(
                self.client.publish(self.topic, str(number), key=b"key-%d" % (number % KEYS), **options)
                for number in numbers
            )
        )
        self.placed |= {number: (place.partition, place.offset) for number, place in zip(numbers, places, strict=True)}

    async def live(self, done: Callable[[], int], crew: Crew) -> None:
        """Publish, wait until half of it is done, and die with the rest on its way."""
        for _ in range(ROUNDS):
            goal = done() + MESSAGES_PER_ROUND // 2
            publishing = asyncio.ensure_future(self.publish(MESSAGES_PER_ROUND))
            await until(lambda goal=goal: done() >= goal, "work goes on", crew)
            await asyncio.to_thread(self.server.kill)
            await asyncio.to_thread(self.server.restart)
            await asyncio.wait_for(publishing, WAIT_S)

    async def settled(self, view: str, crew: Crew) -> penstock.Queue:
        """When nothing is left behind."""

        async def is_settled() -> bool:
            queue = await self.client.queue(self.topic, view)
            return queue.pending == 0 and queue.processing == 0

        await until(is_settled, f"all of {view} is settled", crew)
        return await self.client.queue(self.topic, view)

    async def values_of(self, topic: str, expected: int) -> list[penstock.Message]:
        """Everything that the log of a topic holds."""
        found: list[penstock.Message] = []
        async with self.client.subscribe(topic, "log", start="earliest") as log:
            async with asyncio.timeout(WAIT_S):
                while len(found) < expected:
                    found += await log.take()
            found += await log.take(timeout_s=0.2)  # what should not be there
        return found


async def until(condition: Callable[[], Any], what: str, crew: Crew | None = None) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        held = condition()
        if await held if isinstance(held, Awaitable) else held:
            return
        if crew is not None:
            crew.check()
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        await asyncio.sleep(0.02)


@pytest.fixture
async def story(start_server: StartServer, topic: str) -> AsyncIterator[Story]:
    server = start_server()
    async with server.client() as client:
        await client.create_topic(topic, partitions=2)
        yield Story(server, client, topic)
    server.stop()
    said = re.findall(r".*(?:Traceback|never retrieved|\bERROR\b|Error:).*", server.log_text())
    assert not said, "\n".join(said[:20])


async def test_acks_nacks_rejections_and_lost_leases_through_all_doors(story: Story) -> None:
    topic, client, crew, history = story.topic, story.client, Crew(), History()
    await client.create_queue(topic, "work", lease_ms=700, retry_initial_ms=20, max_attempts=0)
    crew.hire(
        client_worker(story.server, topic, "work", history),
        client_worker(story.server, topic, "work", history),
        http_worker(story.server, topic, "work", history),
        text_worker(story.server, topic, "work", history),
    )
    await story.live(lambda: len(history.ended), crew)
    queue = await story.settled("work", crew)
    await crew.dismiss()
    assert not history.faults, history.faults[:10]
    assert queue.processed == story.published
    assert len(story.placed) == story.published

    bad = {number for number in range(story.published) if is_bad(number)}
    letters = await story.values_of(f"{topic}.work.dead", len(bad))
    assert sorted(int(letter.text) for letter in letters) == sorted(bad)
    for letter in letters:
        partition, offset = story.placed[int(letter.text)]
        headers = letter.headers
        assert headers["penstock-dead-reason"] == b"rejected"
        assert headers["penstock-dead-view"] == f"{topic}/work".encode()
        assert (headers["penstock-dead-partition"], headers["penstock-dead-offset"]) == (
            b"%d" % partition,
            b"%d" % offset,
        )
    records = await story.values_of(topic, story.published)
    assert sorted(int(record.text) for record in records) == list(range(story.published))
    # Whoever did not hear of its ack got the message again; but every message came, and most of the ends were heard.
    assert set(history.leases) | set(history.ended) == set(range(story.published))


async def test_at_most_once_means_not_twice(story: Story) -> None:
    crew, seen = Crew(), Counter[int]()
    await story.client.create_queue(story.topic, "once", guarantee="at-most-once")
    crew.hire(*(at_most_once_worker(story.server, story.topic, "once", seen) for _ in range(2)))
    await story.live(lambda: len(seen), crew)
    await story.settled("once", crew)
    await crew.dismiss()
    assert not [number for number, count in seen.items() if count > 1]
    lost = story.published - len(seen)
    assert lost <= ROUNDS * 2 * 30, "only what was on its way to a consumer may be missing"


async def test_each_message_has_its_effect_once_by_steps(story: Story) -> None:
    output, crew, repeats = f"{story.topic}.out", Crew(), Counter[str]()
    await story.client.create_topic(output, partitions=3)
    await story.client.create_queue(story.topic, "steps", guarantee="exactly-once", lease_ms=2_000, max_attempts=0)
    done = Counter[str]()

    async def count() -> None:
        async with story.server.client() as client, client.subscribe(output, "log") as log:
            async for message in log:
                done[message.text] += 1

    crew.hire(count(), *(stepping_worker(story.server, story.topic, "steps", output, repeats) for _ in range(3)))
    await story.live(lambda: len(done), crew)
    await story.settled("steps", crew)
    await crew.dismiss()
    made = await story.values_of(output, story.published)
    assert Counter(int(message.text) for message in made) == Counter(range(story.published))
    assert repeats["not again"] and not repeats["again"]


async def test_keys_stay_in_order(story: Story) -> None:
    crew, order = Crew(), KeyOrder()
    await story.client.create_queue(
        story.topic, "ordered", ordered_by_key=True, retry_initial_ms=10, max_attempts=0, lease_ms=5_000
    )
    crew.hire(*(ordered_worker(story.server, story.topic, "ordered", order, story.keys) for _ in range(3)))
    await story.live(lambda: sum(map(len, order.asked.values())), crew)
    await story.settled("ordered", crew)
    await crew.dismiss()
    assert not order.faults, order.faults[:10]
    for key, numbers in story.keys.items():
        assert set(order.asked[key]) == set(numbers)


async def test_delayed_messages_come_in_their_time_after_any_number_of_deaths(story: Story) -> None:
    crew = Crew()
    came: dict[int, int] = {}
    early: list[str] = []
    await story.client.create_queue(story.topic, "later", lease_ms=5_000)

    async def work() -> None:
        async with story.server.client() as client, client.subscribe(story.topic, "queue", name="later") as mine:
            async for message in mine:
                now_ms = time.time_ns() // 1_000_000
                delay_ms = int(message.headers.get("penstock-delay-ms") or b"0")
                if now_ms < message.timestamp_ms + delay_ms:
                    early.append(f"{message.text} came {message.timestamp_ms + delay_ms - now_ms} ms early")
                came[int(message.text)] = now_ms
                message.ack()

    crew.hire(work())
    for at in range(ROUNDS):
        await asyncio.gather(*(story.publish(20, delay_s=delay) for delay in (None, 0.3, 1.0, 2.5)))
        await until(lambda at=at: len(came) >= 20 * (at + 1), "what is not delayed comes", crew)
        await asyncio.to_thread(story.server.kill)
        await asyncio.to_thread(story.server.restart)
    queue = await story.settled("later", crew)
    await crew.dismiss()
    assert not early, early[:10]
    assert len(came) == story.published == queue.processed
