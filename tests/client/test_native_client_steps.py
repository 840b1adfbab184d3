"""Named steps through the client: seen at once, once only, whatever the connection and the server do meanwhile."""

import asyncio

import pytest

import penstock
from penstock.testing import Server
from servers import StartServer

WITHIN_S = 30


async def values(client: penstock.Client, topic: str) -> list[str]:
    """What of the topic is committed now."""
    found = []
    for partition in range((await client.topic(topic)).partitions):
        bounds = await client.offsets(topic, partition)
        subscription = client.subscribe(topic, partitions=[partition])
        while True:
            got = await subscription.take(1000, timeout_s=0.2 if bounds.end else 0.01)
            if not got:
                break
            found += [message.text for message in got]
        await subscription.close()
    return found


async def test_a_step_is_seen_when_it_is_over(server: Server, topic: str, group: str) -> None:
    async with penstock.Client(server.line) as client:
        await client.create_topic(topic, 3)
        async with client.step(topic, 1, mark="first") as step:
            assert not step.done
            await asyncio.gather(*(step.publish(topic, str(number), partition=number % 3) for number in range(9)))
            placed = await step.publish_many(topic, ["9", penstock.Outgoing("10", partition=1)])
            assert placed[1].partition == 1
            step.commit_offsets(group, {(topic, 0): 1})
            assert await values(client, topic) == []
            assert await client.committed(group) == {}
        assert sorted(map(int, await values(client, topic))) == list(range(11))
        assert await client.committed(group) == {(topic, 0): 1}
        assert (await client.steps.describe(topic)).committed == {1: "first"}


async def test_the_same_step_again_does_nothing(server: Server, topic: str) -> None:
    async with penstock.Client(server.line) as client:
        for _ in range(2):
            async with client.step(topic, 1, mark="m") as step:
                await step.publish(topic, "once")
        assert step.done
        with pytest.raises(penstock.StepMismatch):
            async with client.step(topic, 1, mark="another"):
                pass
        async with client.step(topic, 2) as step:
            await step.publish(topic, "two")
        assert await values(client, topic) == ["once", "two"]
        await client.steps.forget(topic)
        with pytest.raises(penstock.UnknownTransaction):
            await client.steps.describe(topic)


async def test_an_error_in_the_block_aborts_it(server: Server, topic: str) -> None:
    async with penstock.Client(server.line) as client:
        with pytest.raises(ZeroDivisionError):
            async with client.step(topic, 1) as step:
                await step.publish(topic, "never")
                raise ZeroDivisionError
        await client.publish(topic, "plain")
        async with client.step(topic, 1) as step:
            await step.publish(topic, "second try")
        assert await values(client, topic) == ["plain", "second try"]


async def test_a_publish_that_failed_is_not_committed_over(server: Server, topic: str) -> None:
    async with penstock.Client(server.line) as client:
        await client.create_topic(topic, 1, {"max.message.bytes": "1000"})
        with pytest.raises(penstock.RecordTooLarge):
            async with client.step(topic, 1) as step:
                await step.publish(topic, "small")
                with pytest.raises(penstock.RecordTooLarge):
                    await step.publish(topic, "x" * 5000)
        assert await values(client, topic) == []


async def test_a_step_that_somebody_aborted_cannot_go_on(server: Server, topic: str) -> None:
    async with penstock.Client(server.line) as client:
        with pytest.raises(penstock.PenstockError) as caught:
            async with client.step(topic, 1) as step:
                await step.publish(topic, "a")
                assert await client.steps.abort(topic, 1) == 1
                await asyncio.wait_for(step.publish(topic, "b"), WITHIN_S)
        assert not isinstance(caught.value, penstock.TimedOut)
        assert await values(client, topic) == []


async def test_writers_in_several_clients_and_one_commit(server: Server, topic: str) -> None:
    async with penstock.Client(server.line) as driver, penstock.Client(server.line) as worker:
        await driver.create_topic(topic, 1)
        one, two = worker.step(topic, 1, writer="task-0"), worker.step(topic, 1, writer="task-0")
        for step in (one, two):
            await step.begin()
            await step.publish(topic, "x")
        assert (await driver.steps.describe(topic)).open == {1: ["task-0", "task-0"]}
        assert await driver.steps.commit(topic, 1, [two.producer_id], "m") is True
        assert await driver.steps.commit(topic, 1, [two.producer_id], "m") is False
        assert await values(driver, topic) == ["x"]
        with pytest.raises(penstock.PenstockError):
            await asyncio.wait_for(one.publish(topic, "late"), WITHIN_S)


def test_the_same_without_a_loop(server: Server, topic: str, group: str) -> None:
    with penstock.SyncClient(server.line) as client:
        with client.step(topic, 1) as step:
            step.publish(topic, "a")
            step.publish_many(topic, ["b", "c"])
            step.commit_offsets(group, {(topic, 0): 2})
        assert [message.text for message in client.subscribe(topic).take(3, timeout_s=WITHIN_S)] == ["a", "b", "c"]
        assert client.committed(group) == {(topic, 0): 2}
        with client.step(topic, 1) as step:
            assert step.done
        with pytest.raises(ValueError, match="no"), client.step(topic, 2) as step:
            step.publish(topic, "d")
            raise ValueError("no")
        assert client.steps.describe(topic).committed == {1: ""}
        writer = client.steps.open_writer(topic, 3, "w")
        assert not writer.done
        assert client.steps.abort(topic, 3) == 1
        client.steps.forget(topic)


@pytest.mark.parametrize("moment", ["before", "while", "after"])
async def test_a_step_outlives_a_killed_server(start_server: StartServer, moment: str) -> None:
    server = start_server()
    async with penstock.Client(server.line, timeout_s=60) as client:
        await client.create_topic("t", 2)
        async with client.step("s", 1) as step:
            if moment == "before":
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.restart)
            writing = [asyncio.ensure_future(step.publish("t", str(n), key=str(n))) for n in range(2_000)]
            await asyncio.wait(writing, return_when=asyncio.FIRST_COMPLETED)
            if moment == "while":
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.restart)
            await asyncio.gather(*writing)
            if moment == "after":
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.restart)
        assert sorted(map(int, await values(client, "t"))) == list(range(2_000))
