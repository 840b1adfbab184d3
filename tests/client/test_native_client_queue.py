"""Queues through the Python client: leased, settled, given back; once where it must be once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

import penstock
from penstock.testing.proxy import Proxy
from penstock.testing.server import Server
from penstock.wire.native.messages import CreateView, Settle, Step, SubscribeQueue
from servers import StartServer

WAIT_S = 30.0


@pytest.fixture
async def client(server: Server) -> AsyncIterator[penstock.Client]:
    async with penstock.Client(server.line) as connected:
        yield connected


def numbers(*bounds: int) -> list[str]:
    return [str(number) for number in range(*bounds)]


async def lease(subscription: penstock.QueueSubscription, count: int) -> list[penstock.Message]:
    messages: list[penstock.Message] = []
    while len(messages) < count:
        batch = await subscription.take(count - len(messages), timeout_s=WAIT_S)
        assert batch, f"only {len(messages)} of {count} came"
        messages += batch
    return messages


def texts(messages: list[penstock.Message]) -> list[str]:
    return [message.text for message in messages]


async def read_log(client: penstock.Client, topic: str) -> list[str]:
    left = (await client.offsets(topic)).end
    found: list[str] = []
    async with client.subscribe(topic) as subscription:
        while len(found) < left:
            found += texts(await subscription.take(timeout_s=WAIT_S))
    return found


# -- settling -----------------------------------------------------------------------------------------------


async def test_a_queue_hands_out_and_forgets_what_is_acknowledged(client: penstock.Client, topic: str) -> None:
    await client.publish_many(topic, numbers(100))
    async with client.subscribe(topic, "queue") as subscription:
        seen = []
        async for message in subscription:
            seen.append(message.text)
            assert message.attempt == 1
            await message.ack()
            if len(seen) == 100:
                break
    assert seen == numbers(100)
    queue = await client.queue(topic)
    assert (queue.pending, queue.processing, queue.processed) == (0, 0, 100)


async def test_batches_are_acknowledged_as_one(server: Server, client: penstock.Client, topic: str) -> None:
    await client.publish_many(topic, numbers(5_000))
    with Proxy(server.line, native=True) as proxy:
        async with penstock.Client(proxy.address) as consumer, consumer.subscribe(topic, "queue") as subscription:
            seen: list[str] = []
            async for batch in subscription.batches():
                seen += texts(batch)
                await subscription.ack(batch)
                if len(seen) == 5_000:
                    break
        assert seen == numbers(5_000)
        assert proxy.requests[Settle.KIND] <= 100


async def test_what_is_settled_in_one_tick_travels_together(
    server: Server, client: penstock.Client, topic: str
) -> None:
    await client.publish_many(topic, numbers(200))
    with Proxy(server.line, native=True) as proxy:
        async with penstock.Client(proxy.address) as consumer, consumer.subscribe(topic, "queue") as subscription:
            messages = await lease(subscription, 200)
            await asyncio.gather(*(message.ack() for message in messages))
            assert proxy.requests[Settle.KIND] == 1
    assert (await client.queue(topic)).processed == 200


async def test_a_failed_message_comes_again_with_its_attempts_counted(client: penstock.Client, topic: str) -> None:
    await client.publish(topic, "x")
    async with client.subscribe(topic, "queue") as subscription:
        for attempt in range(1, 4):
            [message] = await lease(subscription, 1)
            assert message.attempt == attempt
            await message.nack(delay_s=0)
        [message] = await lease(subscription, 1)
        await message.release()
        [message] = await lease(subscription, 1)
        assert message.attempt == 4, "what was not tried does not count"
        await message.ack()


async def test_a_rejected_message_is_dead_and_can_be_driven_back(client: penstock.Client, topic: str) -> None:
    await client.publish(topic, "x", key="k")
    async with client.subscribe(topic, "queue") as subscription:
        [message] = await lease(subscription, 1)
        await message.reject()
        [dead] = await client.subscribe(f"{topic}.queue.dead").take(timeout_s=WAIT_S)
        assert (dead.text, dead.key) == ("x", b"k")
        assert dead.headers["penstock-dead-reason"] == b"rejected"
        assert dead.headers["penstock-dead-topic"] == topic.encode()
        assert await client.redrive_queue(topic) == 1
        [again] = await lease(subscription, 1)
        assert again.text == "x"
        await again.ack()


async def test_a_lease_that_ends_is_lost_to_the_next_consumer(client: penstock.Client, topic: str) -> None:
    await client.create_queue(topic, retry_initial_ms=1, retry_ceiling_ms=1)
    await client.publish(topic, "x")
    async with client.subscribe(topic, "queue", lease_s=1.0) as slow:
        [message] = await lease(slow, 1)
        [again] = await lease(slow, 1)
        assert again.attempt == 2
        with pytest.raises(penstock.LeaseLost) as refused:
            await message.ack()
        assert refused.value.messages == [message]  # type: ignore[attr-defined]
        await again.ack()


async def test_an_extended_lease_does_not_end(client: penstock.Client, topic: str) -> None:
    await client.publish(topic, "x")
    async with client.subscribe(topic, "queue", lease_s=1.0) as subscription:
        [message] = await lease(subscription, 1)
        await message.extend(lease_s=60)
        assert await subscription.take(timeout_s=1.5) == []
        await message.ack()


async def test_credit_bounds_what_is_unsettled(client: penstock.Client, topic: str) -> None:
    await client.publish_many(topic, numbers(30))
    async with client.subscribe(topic, "queue", credit=5) as subscription:
        first = await lease(subscription, 5)
        assert await subscription.take(timeout_s=0.05) == []
        await first[0].ack()
        assert texts(await lease(subscription, 1)) == ["5"]
        assert await subscription.take(timeout_s=0.05) == []
        await subscription.ack(first[1:])
        assert texts(await lease(subscription, 4)) == numbers(6, 10)


async def test_consumers_share_a_queue(client: penstock.Client, server: Server, topic: str) -> None:
    await client.publish_many(topic, numbers(1_000))
    seen: Counter[str] = Counter()
    shares: list[int] = []
    everything = asyncio.Event()

    async def consume() -> None:
        mine = 0
        async with penstock.Client(server.line) as own, own.subscribe(topic, "queue", credit=20) as subscription:
            stop = asyncio.create_task(everything.wait())
            while not everything.is_set():
                taking = asyncio.create_task(subscription.take(20))
                await asyncio.wait([taking, stop], return_when=asyncio.FIRST_COMPLETED, timeout=WAIT_S)
                if not taking.done():
                    taking.cancel()
                    continue
                batch = taking.result()
                mine += len(batch)
                seen.update(texts(batch))
                await subscription.ack(batch)
                if len(seen) == 1_000:
                    everything.set()
        shares.append(mine)

    await asyncio.wait_for(asyncio.gather(*(consume() for _ in range(4))), WAIT_S)
    assert seen == Counter(numbers(1_000)), "each once"
    assert sum(shares) == 1_000


async def test_what_a_leaving_consumer_holds_goes_to_others(client: penstock.Client, topic: str) -> None:
    await client.publish_many(topic, numbers(10))
    async with client.subscribe(topic, "queue") as leaving:
        held = await lease(leaving, 4)
        await held[0].ack()
    async with client.subscribe(topic, "queue") as staying:
        messages = await lease(staying, 9)
        assert sorted(texts(messages), key=int) == numbers(1, 10)
        await staying.ack(messages)
    assert (await client.queue(topic)).pending == 0


# -- guarantees ---------------------------------------------------------------------------------------------


async def test_at_most_once_is_settled_before_it_is_handed_out(client: penstock.Client, topic: str) -> None:
    await client.publish_many(topic, numbers(3_000))
    async with client.subscribe(topic, "queue", guarantee="at-most-once", credit=100) as subscription:
        messages = await lease(subscription, 500)
        assert texts(messages) == numbers(500)
        await messages[0].ack()  # nothing to do, and no error
        assert len(subscription._buffer) <= 100
        processed = (await client.queue(topic)).processed
        assert 500 <= processed <= 700, "and what nobody has room for waits on the server"
    async with client.subscribe(topic, "queue") as other:
        [message] = await lease(other, 1)
        assert int(message.text) >= 500


async def test_a_step_settles_and_publishes_at_once(client: penstock.Client, topic: str) -> None:
    out = f"{topic}-out"
    await client.publish_many(topic, numbers(20))
    async with client.subscribe(topic, "queue", guarantee="exactly-once") as subscription:
        for message in await lease(subscription, 20):
            async with subscription.step() as step:
                step.publish(out, f"done {message.text}", key="k", headers={"h": "1"})
                step.ack(message)
            assert not step.repeated
    assert await read_log(client, out) == [f"done {number}" for number in range(20)]
    assert (await client.queue(topic)).processed == 20


async def test_a_step_that_raises_does_nothing(client: penstock.Client, topic: str) -> None:
    out = f"{topic}-out"
    await client.publish(topic, "x")
    await client.create_topic(out)
    async with client.subscribe(topic, "queue") as subscription:
        [message] = await lease(subscription, 1)
        with pytest.raises(ZeroDivisionError):
            async with subscription.step() as step:
                step.publish(out, "never")
                step.ack(message)
                raise ZeroDivisionError
        assert (await client.queue(topic)).processing == 1
    assert await read_log(client, out) == []


async def test_a_step_of_the_same_name_happens_once(client: penstock.Client, topic: str) -> None:
    out = f"{topic}-out"
    await client.publish(topic, "x")
    async with client.subscribe(topic, "queue") as subscription:
        [message] = await lease(subscription, 1)
        for repeated in (False, True, True):
            step = subscription.step("transfer 7")
            step.publish(out, "paid")
            step.ack(message)
            await step.perform()
            assert step.repeated is repeated
    assert await read_log(client, out) == ["paid"]


async def test_a_step_whose_answer_is_lost_happens_once(server: Server, client: penstock.Client, topic: str) -> None:
    out = f"{topic}-out"
    await client.publish_many(topic, numbers(30))
    with Proxy(server.line, native=True) as proxy:
        rule = proxy.lose_replies(Step.KIND, every=3, limit=8)
        async with penstock.Client(proxy.address) as consumer, consumer.subscribe(topic, "queue") as subscription:
            done: list[str] = []
            while len(done) < 30:
                # A cut takes away what was leased and not settled; it comes again.
                [message] = await lease(subscription, 1)
                try:
                    async with subscription.step(f"order {message.text}") as step:
                        step.publish(out, message.text)
                        step.ack(message)
                except penstock.LeaseLost:
                    continue
                done.append(message.text)
        assert rule.lost == 8
    assert sorted(done, key=int) == numbers(30)
    assert sorted(await read_log(client, out), key=int) == numbers(30)
    assert (await client.queue(topic)).processed == 30


# -- broken connections -------------------------------------------------------------------------------------


async def test_an_ack_whose_answer_is_lost_is_sent_again(server: Server, client: penstock.Client, topic: str) -> None:
    await client.publish_many(topic, numbers(300))
    with Proxy(server.line, native=True) as proxy:
        lost_replies = proxy.lose_replies(Settle.KIND, every=3, limit=6)
        lost_requests = proxy.lose_requests(Settle.KIND, every=5, limit=4)
        proxy.lose_replies(SubscribeQueue.KIND, every=1, limit=1)
        proxy.lose_replies(CreateView.KIND, every=1, limit=1)
        patient: dict[str, int | float | str | bool | None] = {"max_attempts": 100}  # a lost connection is a failure
        async with (
            penstock.Client(proxy.address) as consumer,
            consumer.subscribe(topic, "queue", settings=patient) as subscription,
        ):
            acked: Counter[str] = Counter()
            while len(acked) < 300:
                batch = await lease(subscription, 1)
                batch += await subscription.take(9, timeout_s=0) if len(acked) < 290 else []
                try:
                    await subscription.ack(batch)
                except penstock.LeaseLost as lost:  # handed out on a connection that broke, and again since
                    gone = lost.messages  # type: ignore[attr-defined]
                    batch = [message for message in batch if message not in gone]
                acked.update(texts(batch))
            assert consumer.reconnects >= 10
        assert (lost_replies.lost, lost_requests.lost) == (6, 4)
    assert set(acked) == set(numbers(300))
    queue = await client.queue(topic)
    assert (queue.pending, queue.processing, queue.processed) == (0, 0, 300)


async def test_an_old_receipt_still_settles_if_nobody_else_has_it(
    server: Server, client: penstock.Client, topic: str
) -> None:
    await client.publish(topic, "x")
    with Proxy(server.line, native=True) as proxy:
        async with penstock.Client(proxy.address) as consumer:
            subscription = consumer.subscribe(topic, "queue")
            [message] = await lease(subscription, 1)
            await client.pause_queue(topic)  # so that nobody gets it meanwhile
            proxy.cut()
            await message.ack()
            assert consumer.reconnects == 1
    await client.resume_queue(topic)
    queue = await client.queue(topic)
    assert (queue.pending, queue.processing, queue.processed) == (0, 0, 1)


async def test_a_queue_survives_a_killed_server(start_server: StartServer, topic: str) -> None:
    """What was acknowledged never comes again; everything else does."""
    server = start_server()
    async with penstock.Client(server.line) as client:
        await client.publish_many(topic, numbers(2_000))
        acked: set[str] = set()
        again: list[str] = []

        async def kill_and_restart() -> None:
            for wanted in (300, 1_200):
                while len(acked) < wanted:  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.restart)

        killing = asyncio.create_task(kill_and_restart())
        async with client.subscribe(topic, "queue", credit=100) as subscription:
            while len(acked) < 2_000:
                batch = await lease(subscription, 1)
                again += [message.text for message in batch if message.text in acked]
                try:
                    await subscription.ack(batch)
                except penstock.LeaseLost:
                    continue
                acked.update(texts(batch))
        await killing
        assert client.reconnects >= 2
        assert again == []
        assert (await client.queue(topic)).pending == 0


async def test_the_email_worker_is_down_while_orders_arrive(start_server: StartServer) -> None:
    """The order service's story: every order is found later, once each by its key."""
    server = start_server()
    async with penstock.Client(server.line) as shop:
        await shop.create_queue("orders", "email", ordered_by_key=True)
        for number in range(50):
            await shop.publish("orders", {"order_id": number}, key=f"customer {number % 7}")
    server.stop()
    server.restart()
    mails: Counter[int] = Counter()
    per_customer: dict[bytes | None, list[int]] = {}
    async with penstock.Client(server.line) as worker, worker.subscribe("orders", "queue", name="email") as queue:
        while len(mails) < 50:
            [message] = await lease(queue, 1)
            order = message.json()["order_id"]
            mails[order] += 1
            per_customer.setdefault(message.key, []).append(order)
            await message.ack()
        assert (await worker.queue("orders", "email")).pending == 0
    assert mails == Counter(range(50))
    assert all(orders == sorted(orders) for orders in per_customer.values())


# -- administration -----------------------------------------------------------------------------------------


async def test_queues_are_made_listed_changed_and_deleted(client: penstock.Client, topic: str) -> None:
    made = await client.create_queue(topic, "mail", lease_ms=5_000, max_attempts=3)
    assert (made.topic, made.name, made.paused) == (topic, "mail", False)
    assert made.settings["lease_ms"] == 5_000
    with pytest.raises(penstock.ViewExists):
        await client.create_queue(topic, "mail")
    assert (await client.create_queue(topic, "mail", or_existing=True)).settings["max_attempts"] == 3
    assert (await client.configure_queue(topic, "mail", max_attempts=4)).settings["max_attempts"] == 4
    assert [queue.name for queue in await client.queues(topic)] == ["mail"]
    assert (topic, "mail") in [(queue.topic, queue.name) for queue in await client.queues()]
    await client.delete_queue(topic, "mail")
    with pytest.raises(penstock.UnknownView):
        await client.queue(topic, "mail")
    with pytest.raises(penstock.InvalidSetting):
        await client.create_queue(topic, "mail", max_attempts=-1)
    with pytest.raises(penstock.UnknownView):
        await client.subscribe(topic, "queue", name="mail", create=False).take()


async def test_a_queue_is_peeked_at_paused_and_purged(client: penstock.Client, topic: str) -> None:
    await client.publish_many(topic, numbers(30))
    await client.create_queue(topic)
    assert texts(await client.peek_queue(topic, limit=3)) == ["0", "1", "2"]
    await client.pause_queue(topic)
    assert (await client.queue(topic)).paused
    async with client.subscribe(topic, "queue") as subscription:
        assert await subscription.take(timeout_s=0.05) == []
        assert await client.purge_queue(topic) == 30
        await client.publish(topic, "new")
        await client.resume_queue(topic)
        [message] = await lease(subscription, 1)
        assert message.text == "new"
        await message.ack()


async def test_a_deleted_queue_ends_its_consumers(client: penstock.Client, topic: str) -> None:
    async with client.subscribe(topic, "queue") as subscription:
        waiting = asyncio.create_task(subscription.take(timeout_s=WAIT_S))
        await client.publish(topic, "x")
        assert texts(await waiting) == ["x"]
        await client.delete_queue(topic)
        with pytest.raises(penstock.UnknownView):
            await subscription.take(timeout_s=WAIT_S)


async def test_a_queue_filters_and_delays(client: penstock.Client, topic: str) -> None:
    async with client.subscribe(topic, "queue", name="red", matches=[{"headers": {"colour": "red"}}]) as subscription:
        await client.publish(topic, "late", headers={"colour": "red"}, delay_s=0.3)
        await client.publish(topic, "other", headers={"colour": "blue"})
        await client.publish(topic, "soon", headers={"colour": "red"})
        assert texts(await lease(subscription, 2)) == ["soon", "late"]


async def test_routers_bind_topics_and_queues(client: penstock.Client, topic: str) -> None:
    router = await client.create_router(topic, "topic")
    assert router == penstock.Router(topic, "topic", [])
    bound = await client.bind(topic, f"{topic}-eu/mail", key="eu.#")
    assert bound.bindings == [penstock.Binding(f"{topic}-eu/mail", "eu.#", {}, False)]
    assert bound in await client.routers()
    async with client.subscribe(f"{topic}-eu", "queue", name="mail") as subscription:
        await client.publish(topic, "us", key="us.order")
        await client.publish(topic, "eu", key="eu.order")
        [message] = await lease(subscription, 1)
        assert message.text == "eu"
        await message.ack()
    assert (await client.unbind(topic, f"{topic}-eu/mail", key="eu.#")).bindings == []
    await client.delete_router(topic)
    with pytest.raises(penstock.UnknownRouter):
        await client.bind(topic, "elsewhere")


async def test_making_things_again_after_a_lost_answer_is_no_error(server: Server, topic: str) -> None:
    with Proxy(server.line, native=True) as proxy:
        for kind in (0x12, 0x54, 0x56, 0x13):  # create topic, create view, delete view, delete topic
            proxy.lose_replies(kind, every=1, limit=1)
        async with penstock.Client(proxy.address) as client:
            assert await client.create_topic(topic, 2) == penstock.Topic(topic, 2, {})
            assert (await client.create_queue(topic, "q", lease_ms=1_000)).settings["lease_ms"] == 1_000
            await client.delete_queue(topic, "q")
            await client.delete_topic(topic)
            assert client.reconnects == 4
            with pytest.raises(penstock.UnknownTopic):
                await client.delete_topic(topic)
