"""Workers of queue views that outlive the server, and what they lived through.

A message is a number. What becomes of it is told by the number, whoever gets it: most are acknowledged, some fail the
first time, some are forgotten until their lease is over, some are rejected.

An acknowledgement that was answered is the end: nobody holds the message then, so from then on no lease with a higher
number may come for it. That needs no clocks, since lease numbers rise, across restarts too.
"""

import asyncio
from collections import Counter, defaultdict

import httpx

import penstock
from penstock.testing.server import Server

WAIT_S = 30.0


def is_bad(number: int) -> bool:
    return number % 13 == 5


class History:
    """What all workers of one view saw and did."""

    def __init__(self) -> None:
        self.leases: dict[int, list[int]] = defaultdict(list)  # message -> lease numbers in the order they came
        self.ended: dict[int, int] = {}  # message -> the lease under which its end was answered
        self.rejected: set[int] = set()  # of these, those that went to the dead letters
        self.failed: set[int] = set()
        self.forgotten: set[int] = set()
        self.newest_lease = 0
        self.faults: list[str] = []

    def deliver(self, number: int, lease: int) -> None:
        self.leases[number].append(lease)
        self.newest_lease = max(self.newest_lease, lease)
        if lease > self.ended.get(number, lease):
            self.faults.append(f"message {number} came under lease {lease}, but ended under {self.ended[number]}")

    def end(self, number: int, lease: int) -> None:
        """Its ack or its rejection was answered."""
        self.ended.setdefault(number, lease)
        if is_bad(number):
            self.rejected.add(number)

    def verb(self, number: int) -> str | None:
        """What to do with it now; None: forget it."""
        if is_bad(number):
            return "reject"
        if number % 7 == 3 and number not in self.failed:
            self.failed.add(number)
            return "nack"
        if number % 41 == 17 and number not in self.forgotten:
            self.forgotten.add(number)
            return None
        return "ack"


class Crew:
    """Tasks that work until they are dismissed; the first that fails is told when they are."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def hire(self, *work: "asyncio._CoroutineLike[None]") -> None:
        self._tasks += [asyncio.ensure_future(each) for each in work]

    def check(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()
                raise AssertionError("a worker went home")

    async def dismiss(self) -> None:
        self.check()
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            assert isinstance(outcome, asyncio.CancelledError), repr(outcome)


# -- workers of a view at least once -----------------------------------------------------------------------------------


async def client_worker(server: Server, topic: str, view: str, history: History) -> None:
    async with server.client() as client, client.subscribe(topic, "queue", name=view, credit=40, create=False) as mine:
        async for batch in mine.batches():
            by_verb: dict[str, list[penstock.Message]] = defaultdict(list)
            for message in batch:
                history.deliver(int(message.text), message.receipt[1])
                verb = history.verb(int(message.text))
                if verb is not None:
                    by_verb[verb].append(message)
            await asyncio.gather(*(_settle(mine, verb, some, history) for verb, some in by_verb.items()))


async def _settle(
    subscription: "penstock.client.queue.QueueSubscription",
    verb: str,
    messages: list[penstock.Message],
    history: History,
) -> None:
    lost: set[penstock.Message] = set()
    try:
        await subscription.settle(messages, verb)  # type: ignore[arg-type]
    except penstock.LeaseLost as error:
        lost = set(error.messages)  # type: ignore[attr-defined]
    if verb in ("ack", "reject"):
        for message in messages:
            if message not in lost:
                history.end(int(message.text), message.receipt[1])


async def http_worker(server: Server, topic: str, view: str, history: History) -> None:
    base = f"{server.http}/v1/topics/{topic}/queues/{view}"
    async with httpx.AsyncClient(timeout=WAIT_S) as http:
        while True:
            try:
                answer = await http.post(f"{base}/lease", json={"limit": 20, "wait_ms": 500})
                if answer.status_code >= 500:
                    continue
                by_verb: dict[str, list[tuple[int, str]]] = defaultdict(list)
                for message in answer.raise_for_status().json()["messages"]:
                    number, receipt = int(message["value"]), message["receipt"]
                    history.deliver(number, int(receipt.split("-")[1]))
                    verb = history.verb(number)
                    if verb is not None:
                        by_verb[verb].append((number, receipt))
                for verb, some in by_verb.items():
                    answer = await http.post(f"{base}/{verb}", json={"receipts": [receipt for _, receipt in some]})
                    if answer.status_code >= 500 or verb == "nack":
                        continue
                    results = answer.raise_for_status().json()["results"]
                    for (number, receipt), result in zip(some, results, strict=True):
                        if result.get("error") is None and result.get("code") is None:
                            history.end(number, int(receipt.split("-")[1]))
            except httpx.TransportError:
                await asyncio.sleep(0.02)


async def text_worker(server: Server, topic: str, view: str, history: History) -> None:
    """As a person with `nc` would: one message at a time. The text protocol tells no lease numbers."""
    host, port = server.line.split(":")
    while True:
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            await asyncio.sleep(0.02)
            continue
        try:
            writer.write(f"SUBSCRIBE {topic}/queue/{view} credit=1\r\n".encode())
            await _text_work(reader, writer, history)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the server died
        finally:
            writer.close()


async def _text_work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, history: History) -> None:
    assert (await reader.readuntil(b"\r\n")).startswith(b"OK ")
    while True:
        number, name = await _text_message(reader)
        verb = history.verb(number)
        if verb is None:
            continue
        writer.write(f"{verb.upper()} {name}\r\n".encode())
        answer = await reader.readuntil(b"\r\n")
        while answer.startswith(b"MSG"):  # of what it forgot the lease is over, and it came again before the answer
            await reader.readexactly(int(answer.split(b" ")[2]) + 2)
            answer = await reader.readuntil(b"\r\n")
        if answer == b"OK\r\n" and verb != "nack":
            history.end(number, history.newest_lease)


async def _text_message(reader: asyncio.StreamReader) -> tuple[int, str]:
    kind, name, size = (await reader.readuntil(b"\r\n")).decode().split()[:3]
    assert kind == "MSG", kind
    payload = await reader.readexactly(int(size) + 2)
    return int(payload), name


# -- workers of other views --------------------------------------------------------------------------------------------


async def at_most_once_worker(server: Server, topic: str, view: str, seen: Counter[int]) -> None:
    async with server.client() as client, client.subscribe(topic, "queue", name=view, credit=30, create=False) as mine:
        async for message in mine:
            seen[int(message.text)] += 1


async def stepping_worker(server: Server, topic: str, view: str, output: str, repeats: Counter[str]) -> None:
    """Each message is settled in the step that publishes what comes of it, and some steps are taken twice."""
    async with server.client() as client, client.subscribe(topic, "queue", name=view, credit=20, create=False) as mine:
        async for message in mine:
            step = mine.step(f"{message.partition}-{message.offset}")
            step.publish(output, message.value, key=message.key)
            step.ack(message)
            try:
                await step.perform()
                if message.offset % 5 == 0:
                    await step.perform()
                    repeats["not again" if step.repeated else "again"] += 1
            except penstock.LeaseLost:
                repeats["lost"] += 1


class KeyOrder:
    """Of each key, a message comes only when all before it were acknowledged, as far as the worker could."""

    def __init__(self) -> None:
        self.asked: dict[bytes, list[int]] = defaultdict(list)  # by key: what somebody asked to be acknowledged
        self.delivered: dict[bytes, int] = defaultdict(int)
        self.failed: set[int] = set()
        self.faults: list[str] = []


async def ordered_worker(server: Server, topic: str, view: str, order: KeyOrder, keys: dict[bytes, list[int]]) -> None:
    async with server.client() as client, client.subscribe(topic, "queue", name=view, credit=30, create=False) as mine:
        async for message in mine:
            key, number = message.key or b"", int(message.text)
            before = [earlier for earlier in keys[key] if earlier < number]
            missing = set(before) - set(order.asked[key])
            if missing:
                order.faults.append(f"{number} of {key!r} came before {sorted(missing)[:5]}")
            order.delivered[key] += 1
            if number % 9 == 4 and number not in order.failed:
                order.failed.add(number)
                message.nack()
            else:
                order.asked[key].append(number)
                message.ack()
