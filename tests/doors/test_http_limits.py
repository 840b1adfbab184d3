"""What a client may not do: send garbage, send nothing, send too much, take nothing. Others never notice."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from penstock.app import Server
from penstock.broker.read import Messages
from penstock.config.kinds import Listen, Storage
from penstock.config.settings import Settings
from penstock.doors.http.door import HttpDoor
from penstock.doors.http.events import with_ids

WAIT_S = 20.0


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        data=str(tmp_path / "data"),
        storage=Storage("memory", persistent=False),
        kafka=None,
        line=None,
        udp=None,
        http=Listen("127.0.0.1", 0),
        max_body_bytes=100_000,
        max_connections=20,
    )


@pytest.fixture
async def door(settings: Settings) -> AsyncIterator[HttpDoor]:
    server = Server(settings)
    await server.start()
    (opened,) = server.doors
    assert isinstance(opened, HttpDoor)
    yield opened
    await asyncio.wait_for(server.stop(), WAIT_S)
    assert opened.house.limits.held_bytes == 0
    assert opened.house.limits.connections == 0


class Bare:
    """A connection that says exactly what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, door: HttpDoor) -> "Bare":
        return cls(*await asyncio.open_connection("127.0.0.1", door.listener.port))

    def say(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))

    async def answer(self) -> tuple[int, dict[str, object]]:
        async with asyncio.timeout(WAIT_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            body = await self.reader.readexactly(length)
        return int(head.split(b" ")[1]), json.loads(body)

    async def problem(self) -> tuple[int, object]:
        status, body = await self.answer()
        return status, body["code"]

    async def closed(self) -> bool:
        """Nothing more comes."""
        async with asyncio.timeout(WAIT_S):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True
            finally:
                self.writer.close()


GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


def post(path: bytes, body: bytes) -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (path, len(body), body)


async def works(door: HttpDoor) -> None:
    """Somebody else is served as if nothing had happened."""
    other = await Bare.open(door)
    other.say(post(b"/v1/topics/others/records", b'{"value": "x"}'))
    assert (await other.answer())[0] == 200
    other.writer.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",  # a TLS hello
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nbad header\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nA: b\r\nContent-Length: minus one\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nx",
        b"POST /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET \xff\xfe HTTP/1.1\r\n\r\n",
        b"CONNECT example.com:443 HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_garbage_is_answered_once_and_closed(door: HttpDoor, garbage: bytes) -> None:
    bare = await Bare.open(door)
    bare.say(garbage)
    assert await bare.problem() == (400, "MalformedRequest")
    assert await bare.closed()
    await works(door)


async def test_who_would_rather_speak_http2_is_answered_all_the_same(door: HttpDoor) -> None:
    bare = await Bare.open(door)
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAA\r\n"
    bare.say(GET, post(b"/v1/topics/t/records", b'{"value": 1}').replace(b"Host: x\r\n", upgrade))
    assert await bare.answer() == (200, {"status": "alive"})
    assert (await bare.answer())[0] == 200
    bare.say(b"GET /v1/topics/t/partitions/0/records HTTP/1.1\r\n\r\n")
    status, answer = await bare.answer()
    assert (status, [record["value"] for record in answer["records"]]) == (200, [1])  # type: ignore[attr-defined]
    bare.writer.close()


async def test_garbage_behind_a_good_request_does_not_spoil_its_answer(door: HttpDoor) -> None:
    bare = await Bare.open(door)
    bare.say(GET, post(b"/v1/topics/t/records", b'{"value": 1}'), b"garbage\r\n\r\n")
    assert (await bare.answer())[0] == 200
    assert (await bare.answer())[0] == 200
    assert await bare.problem() == (400, "MalformedRequest")
    assert await bare.closed()


async def test_pipelined_requests_are_answered_in_order(door: HttpDoor) -> None:
    bare = await Bare.open(door)
    count = 500
    bare.say(*(post(b"/v1/topics/t/records", b'{"value": %d}' % n) for n in range(count)))
    offsets = [(await bare.answer())[1]["offsets"] for _ in range(count)]
    assert offsets == [[{"partition": 0, "offset": n}] for n in range(count)]
    bare.writer.close()


async def test_a_request_may_come_byte_by_byte(door: HttpDoor) -> None:
    bare = await Bare.open(door)
    for byte in post(b"/v1/topics/t/records", b'{"value": "slow"}') + GET:
        bare.say(bytes([byte]))
        await asyncio.sleep(0)
    assert (await bare.answer())[0] == 200
    assert await bare.answer() == (200, {"status": "alive"})
    bare.writer.close()


async def test_a_head_that_never_ends_is_refused(door: HttpDoor) -> None:
    bare = await Bare.open(door)
    bare.say(b"GET /healthz HTTP/1.1\r\n", b"a: b\r\n" * 20_000)
    assert await bare.problem() == (431, "HeadTooLarge")
    assert await bare.closed()
    bare = await Bare.open(door)
    bare.say(b"GET /healthz HTTP/1.1\r\nX: ", b"x" * 200_000, b"\r\n\r\n")
    assert await bare.problem() == (431, "HeadTooLarge")
    assert await bare.closed()
    await works(door)


async def test_a_head_that_does_not_arrive_in_time_is_refused(door: HttpDoor) -> None:
    door.house.heads.allowed_s = 0.2
    half, silent = await Bare.open(door), await Bare.open(door)
    half.say(b"GET /healthz HTT")
    assert await half.problem() == (408, "RequestTimedOut")
    assert await half.closed()
    assert await silent.closed()  # it never said anything, and hears nothing
    await works(door)


async def test_a_drip_of_bytes_buys_no_time(door: HttpDoor) -> None:
    door.house.heads.allowed_s = 0.3
    bare = await Bare.open(door)

    async def drip() -> None:
        for byte in b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 1_000:
            bare.say(bytes([byte]))
            await asyncio.sleep(0.02)

    dripping = asyncio.create_task(drip())
    assert await bare.problem() == (408, "RequestTimedOut")
    dripping.cancel()
    assert await bare.closed()


async def test_a_body_that_does_not_arrive_in_time_is_refused(door: HttpDoor) -> None:
    door.house.bodies.allowed_s = 0.2
    bare = await Bare.open(door)
    bare.say(post(b"/v1/topics/t/records", b'{"value": "x"}')[:-3])
    assert await bare.problem() == (408, "RequestTimedOut")
    assert await bare.closed()
    await works(door)


async def test_a_kept_connection_may_rest_between_requests(door: HttpDoor) -> None:
    door.house.heads.allowed_s = door.house.bodies.allowed_s = 0.1
    bare = await Bare.open(door)
    for _ in range(3):
        bare.say(GET)
        assert (await bare.answer())[0] == 200
        await asyncio.sleep(0.3)
    bare.writer.close()


async def test_a_body_that_is_too_large_is_refused_and_gives_its_memory_back(door: HttpDoor) -> None:
    bare = await Bare.open(door)
    bare.say(b"POST /v1/topics/t/records HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(40):
        bare.say(b"2710\r\n", b"x" * 10_000, b"\r\n")
    assert await bare.problem() == (413, "BodyTooLarge")
    assert await bare.closed()
    await works(door)


@pytest.mark.parametrize("endless", [b"a: b\r\n", b"x", b"a: " + b"x" * 1_000])
async def test_an_endless_trailer_is_refused(door: HttpDoor, endless: bytes) -> None:
    bare = await Bare.open(door)
    bare.say(b"POST /v1/topics/t/records HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nt: ")
    await bare.writer.drain()
    await _until(lambda: bool(door.listener.connections))
    for _ in range(100):
        bare.say(endless * (10_000 // len(endless)))
        await asyncio.sleep(0)
    assert await bare.problem() == (431, "HeadTooLarge")
    assert await bare.closed()
    await works(door)


async def test_a_body_in_chunks_of_a_byte_with_a_trailer_is_taken(door: HttpDoor) -> None:
    bare = await Bare.open(door)
    bare.say(b"POST /v1/topics/t/records HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    for byte in b'{"value": "%b"}' % (b"x" * 20_000):
        bare.say(b"1\r\n%c\r\n" % byte)
    bare.say(b"0\r\nchecksum: none\r\n\r\n", GET)
    assert (await bare.answer())[0] == 200
    assert await bare.answer() == (200, {"status": "alive"})
    bare.writer.close()


async def test_an_answer_that_nobody_takes_is_given_up(door: HttpDoor) -> None:
    door.house.stalls.allowed_s = 0.3
    filler = await Bare.open(door)
    records = b",".join([b'{"value": "%b"}' % (b"x" * 900)] * 100)
    for _ in range(100):
        filler.say(post(b"/v1/topics/big/records", b'{"records": [%b]}' % records))
        assert (await filler.answer())[0] == 200
    filler.writer.close()
    bare = await Bare.open(door)
    bare.reader._limit = 1  # type: ignore[attr-defined]  # so that asyncio does not read ahead
    bare.writer.transport.pause_reading()
    bare.say(b"GET /v1/topics/big/events?view=log HTTP/1.1\r\n\r\n")
    await _until(lambda: len(door.listener.connections) == 1)  # the filler has gone
    await _until(lambda: not door.listener.connections)  # and the other was cut off
    bare.writer.close()
    await works(door)


class Slow:
    """A connection as the door's stalls see it: what its client has not taken at each look."""

    def __init__(self, *unread_bytes: int) -> None:
        self._unread = list(unread_bytes)
        self.transport = self
        self.unread_bytes = 0
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self._unread.pop(0) if len(self._unread) > 1 else self._unread[0]

    def abort(self) -> None:
        self.aborted = True


async def test_a_client_that_reads_slowly_is_waited_for(door: HttpDoor) -> None:
    door.house.stalls.allowed_s = 0.02
    slow = Slow(1_000, 900, 900, 800, 800, 799, 799, 799)
    door.house.writing_paused(slow)
    await _until(lambda: slow.aborted)
    assert slow.unread_bytes == 799  # it was waited for as long as it took anything


async def test_more_connections_than_allowed_are_turned_away(door: HttpDoor) -> None:
    kept = [await Bare.open(door) for _ in range(20)]
    for bare in kept:
        bare.say(GET)
        assert (await bare.answer())[0] == 200
    refused = await Bare.open(door)
    refused.say(GET)
    assert await refused.closed()
    kept.pop().writer.close()
    await _until(lambda: door.house.limits.connections < 20)
    await works(door)
    for bare in kept:
        bare.writer.close()


async def test_nobody_is_read_from_while_the_memory_of_requests_is_used_up(door: HttpDoor) -> None:
    limits = door.house.limits
    limits.max_held_bytes, limits.stuck_s = 50_000, 0.3
    hog = await Bare.open(door)
    hog.say(b"POST /v1/topics/t/records HTTP/1.1\r\nContent-Length: 90000\r\n\r\n", b"x" * 80_000)
    await _until(lambda: limits.exhausted)
    # What it holds never becomes a request; in the end it is closed, and the others go on.
    assert await hog.closed()
    assert limits.held_bytes == 0
    await works(door)


async def test_a_client_that_leaves_does_not_stop_what_it_began(door: HttpDoor) -> None:
    for n in range(20):
        bare = await Bare.open(door)
        bare.say(post(b"/v1/topics/kept/records", b'{"value": %d}' % n))
        await bare.writer.drain()
        bare.writer.close()  # without waiting for the answer
        await bare.writer.wait_closed()
    async with asyncio.timeout(WAIT_S):
        while True:
            bare = await Bare.open(door)
            bare.say(b"GET /v1/topics/kept/partitions/0/records HTTP/1.1\r\n\r\n")
            _, answer = await bare.answer()
            bare.writer.close()
            if len(answer.get("records", ())) == 20:  # type: ignore[arg-type]
                break
            await asyncio.sleep(0.01)


async def test_idle_streams_are_kept_alive_by_one_timer(door: HttpDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.doors.http.streams.KEEP_ALIVE_S", 0.05)
    await works(door)
    streams = [await Bare.open(door) for _ in range(5)]
    for bare in streams:
        bare.say(b"GET /v1/topics/others/events HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(WAIT_S):
        for bare in streams:
            for _ in range(3):
                await bare.reader.readuntil(b": still here\n\n")
    for bare in streams:
        bare.writer.close()
    await _until(lambda: not door.listener.connections)


async def test_what_many_read_is_formatted_once(door: HttpDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    formatted: list[int] = []

    def counted(messages: Messages) -> bytes:
        formatted.append(len(messages))
        return with_ids(messages)

    monkeypatch.setattr("penstock.doors.http.events.with_ids", counted)
    await works(door)
    streams = [await Bare.open(door) for _ in range(15)]
    for bare in streams:
        bare.say(b"GET /v1/topics/others/events HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(WAIT_S):
        for bare in streams:
            await bare.reader.readuntil(b"id: 0:0\n\n")
        publisher = await Bare.open(door)
        records = b",".join([b'{"value": %d}' % n for n in range(100)])
        publisher.say(post(b"/v1/topics/others/records", b'{"records": [%b]}' % records))
        assert (await publisher.answer())[0] == 200
        for bare in streams:
            await bare.reader.readuntil(b"id: 0:100\n")
    assert formatted == [100]
    for bare in (*streams, publisher):
        bare.writer.close()
    await _until(lambda: not door.listener.connections)


async def test_a_reader_that_leaves_is_sent_home(door: HttpDoor) -> None:
    await works(door)
    bare = await Bare.open(door)
    bare.say(b"GET /v1/topics/others/partitions/0/records?offset=latest&wait_ms=60000 HTTP/1.1\r\n\r\n")
    await _until(lambda: any(not connection.idle() for connection in door.listener.connections))
    bare.writer.close()
    await _until(lambda: not door.house.state.tasks)


async def test_a_drain_lets_requests_finish_and_takes_no_new_ones(settings: Settings) -> None:
    server = Server(settings)
    await server.start()
    (door,) = server.doors
    assert isinstance(door, HttpDoor)
    await works(door)
    polling, idle, half = await Bare.open(door), await Bare.open(door), await Bare.open(door)
    polling.say(b"GET /v1/topics/others/partitions/0/records?offset=latest&wait_ms=60000 HTTP/1.1\r\n\r\n")
    idle.say(GET)
    half.say(b"POST /v1/topics/others/rec")
    assert (await idle.answer())[0] == 200
    await _until(lambda: sum(not connection.idle() for connection in door.listener.connections) == 1)
    await asyncio.wait_for(server.stop(), WAIT_S)
    status, _ = await polling.answer()
    assert status in (200, 503)
    assert await polling.closed() and await idle.closed() and await half.closed()


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true():  # noqa: ASYNC110  # nothing in the door tells of it
            await asyncio.sleep(0.005)
