"""HTTP, text, the binary protocol and the Python client beside transactions: each reads what is committed."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace as Struct

import httpx
import pytest
from line_house import line_server
from line_talk import Talk
from native_wire import NativeWire, opened

from penstock import Client
from penstock.config.kinds import Listen
from penstock.doors.http.door import HttpDoor
from penstock.log.partition import Partition
from penstock.model.batch import TRANSACTIONAL, check_batch, encode_batch, walk
from penstock.model.record import Record
from penstock.wire.native.messages import Commit, Done, Fetch, Fetched, ListOffsets, Offsets


class Writer:
    def __init__(self, partition: Partition) -> None:
        self.partition, self.sequence = partition, 0

    async def write(self, *values: bytes) -> None:
        now_ms = time.time_ns() // 1_000_000
        batch = encode_batch(
            [Record(i, now_ms, None, value) for i, value in enumerate(values)],
            producer_id=7,
            producer_epoch=0,
            base_sequence=self.sequence,
            attributes=TRANSACTIONAL,
        )
        self.sequence += len(values)
        await self.partition.append(check_batch(batch), batch).durable

    async def end(self, commit: bool) -> None:
        await self.partition.end_transaction(7, 0, commit).durable


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[Struct]:
    """Three doors, and a topic with: an aborted record, a committed one, a marker each, and one that is open."""
    async with line_server(tmp_path / "data", http=Listen("127.0.0.1", 0)) as (server, door):
        (web,) = (each for each in server.doors if isinstance(each, HttpDoor))
        topics = door.broker.topics
        partition = await topics.open(await topics.create("orders", 1, {}), 0)
        writer = Writer(partition)
        await writer.write(b"aborted")
        await writer.end(False)
        await writer.write(b"committed")
        await writer.end(True)
        await writer.write(b"open")
        assert (partition.stable_end, partition.durable_end) == (4, 5)
        address = f"127.0.0.1:{door.listener.port}"
        native, talk = await NativeWire.open(address), await Talk.open(door.listener.port)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{web.listener.port}", timeout=30) as http:
            yield Struct(partition=partition, writer=writer, native=native, talk=talk, http=http, address=address)
        await native.close()
        talk.writer.close()


def values_of(batches: bytes, offset: int = 0) -> list[bytes | None]:
    return [record.value for record in opened(batches) if record.offset >= offset]


async def test_the_binary_protocol_fetches_what_is_committed(house: Struct) -> None:
    native = house.native
    got = await native.ask(Fetch("orders", 0, 0, 1 << 20, 0), Fetched)
    assert (values_of(got.batches), got.next_offset, got.start, got.end) == ([b"committed"], 4, 0, 5)
    assert not any(header.is_control for header in walk(got.batches))
    got = await native.ask(Fetch("orders", 0, 3, 1 << 20, 0), Fetched)
    assert (got.batches, got.next_offset) == (b"", 4)
    assert await native.ask(ListOffsets("orders", 0), Offsets) == Offsets(0, 5, stable=4)
    asked = ListOffsets("orders", 0, int(time.time() * 1000) + 60_000)
    assert await native.ask(asked, Offsets) == Offsets(0, 5, 4, 4)


async def test_the_binary_protocol_fetches_everything_for_who_asks(house: Struct) -> None:
    got = await house.native.ask(Fetch("orders", 0, 0, 1 << 20, 0, committed=False), Fetched)
    assert [h.base_offset for h in walk(got.batches)] == [0, 1, 2, 3, 4]
    assert [h.base_offset for h in walk(got.batches) if h.is_control] == [1, 3]


async def test_a_fetch_waits_for_the_end_of_a_transaction(house: Struct) -> None:
    asked = house.native.send(Fetch("orders", 0, 4, 1 << 20, 60_000))
    async with asyncio.timeout(20):
        while house.partition.watcher_count < 1:  # noqa: ASYNC110 - nobody tells when somebody begins to wait
            await asyncio.sleep(0)
    await house.writer.write(b"more")
    await house.writer.end(True)
    got = await house.native.reply(asked, Fetched)
    assert (values_of(got.batches), got.next_offset) == ([b"open", b"more"], 7)


async def test_http_reads_what_is_committed(house: Struct) -> None:
    http, place = house.http, "/v1/topics/orders/partitions/0/records"
    answer = (await http.get(place)).json()
    assert [record["value"] for record in answer["records"]] == ["committed"]
    assert answer["next"] == [{"partition": 0, "offset": 4}]
    answer = (await http.get(place, params={"offset": "latest"})).json()
    assert answer["next"] == [{"partition": 0, "offset": 4}]
    binary = {"accept": "application/vnd.penstock.batch"}
    answer = await http.get(place, headers=binary)
    assert (values_of(answer.content), answer.headers["penstock-next-offset"]) == ([b"committed"], "4")
    answer = await http.get(place, headers=binary, params={"offset": 3})
    assert (answer.content, answer.headers["penstock-next-offset"]) == (b"", "4")
    answer = (await http.post("/v1/consume", json={"topic": "orders", "group": "g"})).json()
    assert [record["value"] for record in answer["records"]] == ["committed"]


async def test_the_lag_of_a_group_is_what_it_could_read(house: Struct) -> None:
    assert await house.native.ask(Commit("g", [("orders", 0, 4)]), Done) == Done(1)
    standing = (await house.http.get("/v1/groups/g/offsets")).json()["offsets"][0]
    assert standing["lag"] == 0
    await house.writer.end(True)
    standing = (await house.http.get("/v1/groups/g/offsets")).json()["offsets"][0]
    assert standing["lag"] == 2  # the record and its marker


async def test_text_reads_what_is_committed(house: Struct) -> None:
    talk = house.talk
    talk.send("FETCH orders 0 count=10\r\n")
    lines = await talk.lines(3)
    assert "committed" in " ".join(lines)
    assert lines[-1].split()[-1].endswith("4"), lines


async def test_the_client_reads_what_is_committed(house: Struct) -> None:
    async with Client(house.address) as client:
        bounds = await client.offsets("orders")
        assert (bounds.start, bounds.end) == (0, 4)
        async with client.subscribe("orders", start="earliest") as reader:
            assert (await asyncio.wait_for(anext(aiter(reader)), 20)).value == b"committed"
        async with client.subscribe("orders", start="latest") as reader:
            await house.writer.end(True)
            assert (await asyncio.wait_for(anext(aiter(reader)), 20)).value == b"open"
