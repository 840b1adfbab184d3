"""Reading several subscriptions at once."""

import asyncio

import pytest

import penstock
from penstock.testing import Server

WAIT_S = 20


async def test_whichever_has_something_is_taken_from(server: Server, topic: str) -> None:
    async with penstock.Client(server.line) as client:
        await client.publish(f"{topic}-b", "waiting")
        await client.create_topic(f"{topic}-a", 1)
        logs = [client.subscribe(f"{topic}-{name}") for name in "ab"]
        found, messages = await client.take_any(logs, 10, WAIT_S)
        assert found is logs[1]
        assert [message.text for message in messages] == ["waiting"]
        taking = asyncio.create_task(client.take_any(logs, 10, WAIT_S))
        await client.publish(f"{topic}-a", "news")
        found, messages = await taking
        assert found is logs[0]
        assert [message.text for message in messages] == ["news"]


async def test_kinds_may_be_mixed_and_no_more_is_taken_than_asked_for(server: Server, topic: str) -> None:
    async with penstock.Client(server.line) as client:
        await client.publish_many(topic, ["a", "b", "c"])
        queue, log = client.subscribe(topic, "queue"), client.subscribe(topic)
        seen: dict[object, list[str]] = {queue: [], log: []}
        while len(seen[queue]) < 3 or len(seen[log]) < 3:
            waiting: list[penstock.QueueSubscription | penstock.LogSubscription] = [
                one for one in (queue, log) if len(seen[one]) < 3
            ]
            found, messages = await client.take_any(waiting, 2, WAIT_S)
            assert 1 <= len(messages) <= 2
            seen[found] += [message.text for message in messages]
            if found is queue:
                await queue.ack(messages)
        assert seen == {queue: ["a", "b", "c"], log: ["a", "b", "c"]}


async def test_nothing_in_time_is_nothing(server: Server, topic: str) -> None:
    async with penstock.Client(server.line) as client:
        logs = [client.subscribe(topic), client.subscribe(f"{topic}-2")]
        assert await client.take_any(logs, timeout_s=0.05) == (None, [])
        await client.publish(topic, "still read")
        assert [message.text for message in (await client.take_any(logs, timeout_s=WAIT_S))[1]] == ["still read"]


async def test_one_that_ends_ends_the_waiting(server: Server, topic: str) -> None:
    async with penstock.Client(server.line) as client:
        logs = [client.subscribe(topic), client.subscribe(f"{topic}-2")]
        await asyncio.gather(*(one.start() for one in logs))
        taking = asyncio.create_task(client.take_any(logs, timeout_s=WAIT_S))
        await client.delete_topic(f"{topic}-2")
        with pytest.raises(penstock.UnknownTopic):
            await taking


async def test_closed_ones_have_nothing(server: Server, topic: str) -> None:
    async with penstock.Client(server.line) as client:
        logs = [client.subscribe(topic), client.subscribe(f"{topic}-2")]
        await asyncio.gather(*(one.start() for one in logs))
        taking = asyncio.create_task(client.take_any(logs, timeout_s=WAIT_S))
        for one in logs:
            await one.close()
        assert await taking == (None, [])


def test_without_a_loop_what_has_crossed_over_comes_first(server: Server, topic: str) -> None:
    with server.sync_client() as client:
        client.publish_many(topic, ["a", "b", "c"])
        client.publish(f"{topic}-2", "other")
        logs = [client.subscribe(f"{topic}-2"), client.subscribe(topic)]
        assert next(logs[1]).text == "a"
        found, messages = client.take_any(logs, 10, WAIT_S)
        assert found is logs[1]
        assert [message.text for message in messages] == ["b", "c"]
        found, messages = client.take_any(logs, 10, WAIT_S)
        assert found is logs[0]
        assert [message.text for message in messages] == ["other"]


@pytest.mark.parametrize(("door", "error"), [("kafka", penstock.WrongDoor), ("http", penstock.ProtocolBroken)])
async def test_the_address_of_another_door_is_told(
    server: Server, door: str, error: type[penstock.PenstockError]
) -> None:
    address = getattr(server, door).removeprefix("http://")
    with pytest.raises(error, match="line door"):
        await penstock.Client(address, connect_timeout_s=0).connect()
