"""Routers: one append, many views; a binding to a topic copies once each, whatever happens in between."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from queue_house import QueueHouse, soon, until, values

from penstock.broker import forward, route
from penstock.broker.route import Binding, Kind, Routers, match_of
from penstock.delivery.filters import Match
from penstock.model.errors import (
    InvalidSetting,
    InvalidTopicName,
    InvalidViewName,
    LimitReached,
    NotAllowed,
    RouterExists,
    StorageFailed,
    UnknownRouter,
    UnknownView,
)
from penstock.model.ids import INTERNAL_PREFIX, StreamId
from penstock.model.message import Outgoing
from penstock.model.record import Headers
from penstock.security.acl import AllowAll, Operation, Resource
from penstock.security.principal import ANONYMOUS, Principal
from penstock.storage.engine import Chunk
from penstock.testing.clock import ManualClock

ROUTERS_LEDGER = f"{INTERNAL_PREFIX}routers"


class RouterHouse(QueueHouse):
    """A queue house with routers in it."""

    routers: Routers

    async def open(self) -> "RouterHouse":
        await super().open()
        self.routers_ledger = await self.topics.open_ledger(ROUTERS_LEDGER)
        self.routers = Routers(
            self.routers_ledger, self.topics, self.authorizer, self.administrator, self.gatherer, self.queues
        )
        await self.routers.start()
        return self

    async def _forget_topic(self, name: str) -> None:
        await self.routers.forget_topic(name)
        await super()._forget_topic(name)

    async def restart(self) -> None:
        await self.routers.stop()
        await super().restart()

    async def crash(self) -> None:
        await self.routers.stop()
        await super().crash()

    async def close(self) -> None:
        await self.routers.stop()
        await super().close()

    async def router(self, kind: Kind, *bindings: Binding, name: str = "events") -> None:
        await self.routers.create(ANONYMOUS, name, kind)
        for binding in bindings:
            await self.routers.bind(ANONYMOUS, name, binding)

    async def say(self, key: bytes | None, value: bytes, headers: Headers = (), topic: str = "events") -> None:
        target = await self.gatherer.target(ANONYMOUS, topic)
        await soon(target.publish([Outgoing(key, value, headers)]))

    async def arrives(self, topic: str, *expected: bytes) -> None:
        """These come to a topic, in this order, and nothing else."""
        await until(lambda: self.stored_in(topic) >= len(expected))
        assert await self.values_of(topic) == list(expected)

    def stored_in(self, topic: str) -> int:
        known = self.topics.by_name.get(topic)
        return sum(partition.durable_end for partition in known.partitions if partition is not None) if known else 0

    async def queue(self, address: str) -> list[bytes | None]:
        topic, _, view = address.partition("/")
        return values(await self.lease(topic=topic, name=view, wait_ms=5))


@pytest.fixture(params=["memory", "disk"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RouterHouse]:
    opened = await RouterHouse(request.param, tmp_path / "life0", ManualClock()).open()
    yield opened
    await opened.close()


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[RouterHouse]:
    opened = await RouterHouse("disk", tmp_path / "life0", ManualClock()).open()
    yield opened
    await opened.close()


# -- kinds ------------------------------------------------------------------------------------------------------


def test_what_a_kind_does_not_use_is_refused() -> None:
    assert match_of("direct", Binding("q", key="a")) == Match(key="a")
    assert match_of("topic", Binding("q", key="a.*")) == Match(pattern="a.*")
    assert match_of("fanout", Binding("q")) == Match()
    assert match_of("headers", Binding("q", headers={"a": "1"}, any_header=True)) == Match(
        headers={"a": "1"}, any_header=True
    )
    wrong: list[tuple[Kind, Binding]] = [
        ("direct", Binding("q")),
        ("topic", Binding("q")),
        ("fanout", Binding("q", key="a")),
        ("headers", Binding("q")),
        ("headers", Binding("q", key="a", headers={"a": "1"})),
        ("direct", Binding("q", key="a", headers={"a": "1"})),
        ("fanout", Binding("q", any_header=True)),
    ]
    for kind, binding in wrong:
        with pytest.raises(InvalidSetting):
            match_of(kind, binding)


async def test_a_direct_router_goes_by_the_key(house: RouterHouse) -> None:
    await house.router("direct", Binding("mail/queue", key="order"), Binding("audit/queue", key="refund"))
    await house.say(b"order", b"1")
    await house.say(b"refund", b"2")
    await house.say(b"other", b"3")
    assert await house.queue("mail/queue") == [b"1"]
    assert await house.queue("audit/queue") == [b"2"]


async def test_a_fanout_router_tells_everyone_from_one_copy(house: RouterHouse) -> None:
    await house.router("fanout", Binding("mail/queue"), Binding("audit/queue"), Binding("events/own"))
    for i in range(3):
        await house.say(None, b"%d" % i)
    for address in ("mail/queue", "audit/queue", "events/own"):
        assert await house.queue(address) == [b"0", b"1", b"2"]
    assert await house.values_of("mail") == []


async def test_a_topic_router_goes_by_patterns(house: RouterHouse) -> None:
    await house.router(
        "topic",
        Binding("eu/queue", key="order.eu.*"),
        Binding("all/queue", key="order.#"),
        Binding("eu/queue", key="x"),
    )
    for key in (b"order.eu.de", b"order.us.ny", b"x", b"refund.eu.de"):
        await house.say(key, key)
    assert await house.queue("eu/queue") == [b"order.eu.de", b"x"]
    assert await house.queue("all/queue") == [b"order.eu.de", b"order.us.ny"]


async def test_a_headers_router_goes_by_headers(house: RouterHouse) -> None:
    both = {"kind": "order", "land": "de"}
    await house.router(
        "headers", Binding("both/queue", headers=both), Binding("any/queue", headers=both, any_header=True)
    )
    await house.say(None, b"1", (("kind", b"order"), ("land", b"de")))
    await house.say(None, b"2", (("land", b"de"),))
    await house.say(None, b"3", (("land", b"fr"),))
    assert await house.queue("both/queue") == [b"1"]
    assert await house.queue("any/queue") == [b"1", b"2"]


# -- bindings ---------------------------------------------------------------------------------------------------


async def test_binding_is_idempotent_and_unbinding_ends_it(house: RouterHouse) -> None:
    one, two = Binding("mail/queue", key="a"), Binding("mail/queue", key="b")
    await house.router("direct", one, two, one)
    assert house.routers.describe(ANONYMOUS, "events").bindings == (one, two)
    await house.routers.unbind(ANONYMOUS, "events", one)
    await house.routers.unbind(ANONYMOUS, "events", one)
    for key in (b"a", b"b"):
        await house.say(key, key)
    assert await house.queue("mail/queue") == [b"b"]
    await house.routers.unbind(ANONYMOUS, "events", two)
    await house.say(b"b", b"late")
    assert await house.queue("mail/queue") == []
    assert house.routers.describe(ANONYMOUS, "events").bindings == ()


async def test_a_binding_takes_what_comes_after_it(house: RouterHouse) -> None:
    await house.router("fanout")
    await house.say(None, b"before")
    await house.routers.bind(ANONYMOUS, "events", Binding("mail/queue"))
    await house.routers.bind(ANONYMOUS, "events", Binding("events/own"))
    await house.routers.bind(ANONYMOUS, "events", Binding("copies"))
    await house.say(None, b"after")
    assert await house.queue("mail/queue") == [b"after"]
    assert await house.queue("events/own") == [b"after"]
    await house.arrives("copies", b"after")


async def test_a_router_is_known_by_name_and_kind(house: RouterHouse) -> None:
    made = await house.routers.create(ANONYMOUS, "events", "direct")
    assert await house.routers.create(ANONYMOUS, "events", "direct") == made
    with pytest.raises(RouterExists):
        await house.routers.create(ANONYMOUS, "events", "fanout")
    with pytest.raises(InvalidSetting):
        await house.routers.create(ANONYMOUS, "other", "round")  # type: ignore[arg-type]
    with pytest.raises(NotAllowed):
        await house.routers.create(ANONYMOUS, "__penstock_x", "direct")
    with pytest.raises(InvalidTopicName):
        await house.routers.create(ANONYMOUS, "no name", "direct")
    assert "events" in house.topics.by_name
    assert house.routers.routers(ANONYMOUS) == [made]
    await house.routers.delete(ANONYMOUS, "events")
    with pytest.raises(UnknownRouter):
        house.routers.describe(ANONYMOUS, "events")
    with pytest.raises(UnknownRouter):
        await house.routers.delete(ANONYMOUS, "events")
    assert "events" in house.topics.by_name


async def test_what_cannot_be_bound_is_refused(house: RouterHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    await house.router("topic")
    for binding, error in (
        (Binding("mail/queue"), InvalidSetting),
        (Binding("mail/queue", key="a#b"), InvalidSetting),
        (Binding("no name/queue", key="a"), InvalidTopicName),
        (Binding("mail/no name", key="a"), InvalidViewName),
        (Binding("mail/__own", key="a"), InvalidViewName),
        (Binding("__penstock_groups", key="a"), NotAllowed),
        (Binding("", key="a"), InvalidTopicName),
    ):
        with pytest.raises(error):
            await house.routers.bind(ANONYMOUS, "events", binding)
    assert house.routers.describe(ANONYMOUS, "events").bindings == ()
    monkeypatch.setattr(route, "MAX_BINDINGS", 1)
    await house.routers.bind(ANONYMOUS, "events", Binding("a/queue", key="a"))
    with pytest.raises(LimitReached):
        await house.routers.bind(ANONYMOUS, "events", Binding("b/queue", key="b"))


async def test_rings_are_refused(house: RouterHouse) -> None:
    for name in ("a", "b", "c"):
        await house.router("fanout", name=name)
    with pytest.raises(InvalidSetting):
        await house.routers.bind(ANONYMOUS, "a", Binding("a"))
    await house.routers.bind(ANONYMOUS, "a", Binding("b"))
    await house.routers.bind(ANONYMOUS, "b", Binding("c"))
    with pytest.raises(InvalidSetting):
        await house.routers.bind(ANONYMOUS, "c", Binding("a"))
    await house.routers.bind(ANONYMOUS, "c", Binding("a/view"))  # a view is no copy
    await house.say(None, b"x", topic="a")
    await house.arrives("c", b"x")


async def test_rights_are_asked_for(tmp_path: Path) -> None:
    class NoWriting(AllowAll):
        def check(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
            if operation in (Operation.WRITE, Operation.ALTER) and name == "secret":
                raise NotAllowed("no")

    house = await RouterHouse("memory", tmp_path, ManualClock(), NoWriting()).open()
    await house.router("fanout")
    with pytest.raises(NotAllowed):
        await house.routers.bind(ANONYMOUS, "events", Binding("secret"))
    with pytest.raises(NotAllowed):
        await house.routers.create(ANONYMOUS, "secret", "fanout")
    await house.close()


# -- copies -----------------------------------------------------------------------------------------------------


async def test_a_binding_to_a_topic_copies_everything_of_a_message(house: RouterHouse) -> None:
    await house.router("direct", Binding("copies", key="k"))
    target = await house.gatherer.target(ANONYMOUS, "events")
    headers: Headers = (("trace", b"1"), ("penstock-delay-ms", b"60000"))
    await target.publish([Outgoing(b"k", b"late", headers, 1234), Outgoing(b"other", b"no"), Outgoing(b"k", b"v")])
    await house.arrives("copies", b"late", b"v")
    first, second = await house.records_of("copies")
    assert (first.key, first.headers, first.timestamp_ms) == (b"k", headers, 1234)
    assert (second.key, second.timestamp_ms) == (b"k", house.clock.wall_ms())


async def test_many_are_copied_in_order_over_several_partitions(house: RouterHouse) -> None:
    await house.topics.create("events", 3, {})
    await house.topics.create("copies", 2, {})
    await house.router("topic", Binding("copies", key="*.eu"))
    target = await house.gatherer.target(ANONYMOUS, "events")
    expected: dict[bytes, list[bytes]] = {}
    for i in range(600):
        key = b"%d.%s" % (i % 7, b"eu" if i % 3 else b"us")
        target.publish([Outgoing(key, b"%d" % i)])
        if i % 3:
            expected.setdefault(key, []).append(b"%d" % i)
        if i % 50 == 0:
            await asyncio.sleep(0)

    await until(lambda: house.stored_in("copies") >= 400)
    got: dict[bytes, list[bytes]] = {}
    for record in await house.records_of("copies"):
        got.setdefault(record.key, []).append(record.value)
    assert got == expected


async def test_what_the_target_refuses_is_dropped_and_the_rest_goes_on(house: RouterHouse) -> None:
    await house.topics.create("copies", 1, {"max.message.bytes": "500"})
    await house.router("fanout", Binding("copies"))
    target = await house.gatherer.target(ANONYMOUS, "events")
    await target.publish([Outgoing(None, value) for value in (b"a", b"x" * 600, b"b")])
    await house.arrives("copies", b"a", b"b")
    await house.say(None, b"c")
    await house.arrives("copies", b"a", b"b", b"c")


async def test_unbinding_a_topic_ends_the_copies(house: RouterHouse) -> None:
    await house.router("fanout", Binding("copies"), Binding("others"))
    await house.say(None, b"a")
    await house.arrives("copies", b"a")
    await house.routers.unbind(ANONYMOUS, "events", Binding("copies"))
    await house.say(None, b"b")
    await house.arrives("others", b"a", b"b")
    assert await house.values_of("copies") == [b"a"]
    with pytest.raises(UnknownView):
        house.queues.describe(ANONYMOUS, "events", "__to_copies")


# -- topics come and go -----------------------------------------------------------------------------------------


async def test_a_deleted_topic_takes_its_router_along(house: RouterHouse) -> None:
    await house.router("fanout", Binding("copies"), Binding("mail/queue"), Binding("events/own"))
    await house.administrator.delete_topic(ANONYMOUS, "events")
    with pytest.raises(UnknownRouter):
        house.routers.describe(ANONYMOUS, "events")
    await house.router("fanout", Binding("copies"))
    await house.say(None, b"anew")  # at offset 0 once more, and yet no repeat
    await house.arrives("copies", b"anew")


async def test_a_deleted_target_takes_its_bindings_along(house: RouterHouse) -> None:
    await house.router("fanout", Binding("copies"), Binding("mail/queue"), Binding("others"))
    await house.say(None, b"a")
    await house.arrives("copies", b"a")
    for topic in ("copies", "mail"):
        await house.administrator.delete_topic(ANONYMOUS, topic)
    assert house.routers.describe(ANONYMOUS, "events").bindings == (Binding("others"),)
    await house.say(None, b"b")
    await house.arrives("others", b"a", b"b")
    assert "copies" not in house.topics.by_name


# -- restarts and failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
async def test_routers_outlive_the_server(disk: RouterHouse, clean: bool) -> None:
    await disk.router("direct", Binding("mail/queue", key="a"), Binding("copies", key="a"))
    await disk.router("fanout", name="gone")
    await disk.routers.delete(ANONYMOUS, "gone")
    await disk.say(b"a", b"1")
    await disk.arrives("copies", b"1")
    before = disk.routers.routers(ANONYMOUS)
    await (disk.restart() if clean else disk.crash())
    assert disk.routers.routers(ANONYMOUS) == before
    await disk.say(b"a", b"2")
    await disk.say(b"b", b"no")
    await disk.arrives("copies", b"1", b"2")
    assert await disk.queue("mail/queue") == [b"1", b"2"]


async def test_copies_that_were_not_acknowledged_are_not_stored_again(disk: RouterHouse) -> None:
    await disk.router("fanout", Binding("copies"))
    for i in range(5):
        await disk.say(None, b"%d" % i)
    await disk.arrives("copies", *[b"%d" % i for i in range(5)])
    await until(lambda: disk.counts("events", "__to_copies").processing == 0)
    # From here on copies are stored and their acknowledgements are not: as if each crash came in between.
    for life in range(3):
        disk.ledger.failing = StorageFailed("the disk says no")
        for i in range(3):
            await disk.say(None, b"%d.%d" % (life, i))
        expected = [b"%d" % i for i in range(5)] + [b"%d.%d" % (at, i) for at in range(life + 1) for i in range(3)]
        await disk.arrives("copies", *expected)
        await disk.crash()
    await disk.say(None, b"last")
    await disk.arrives("copies", *expected, b"last")


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
async def test_what_came_while_the_server_was_down_is_copied_after(disk: RouterHouse, guarantee: str) -> None:
    await disk.topics.create("events", 1, {"delivery.guarantee": guarantee})
    await disk.router("fanout", Binding("copies"))
    await disk.routers.stop()  # nobody copies
    for i in range(3):
        await disk.say(None, b"%d" % i)
    await disk.crash()
    await disk.arrives("copies", b"0", b"1", b"2")
    assert disk.routers.describe(ANONYMOUS, "events").bindings == (Binding("copies"),)


async def test_copies_are_tried_again_when_the_disk_says_no(
    house: RouterHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(forward, "RETRY_CEILING_S", 0.001)
    await house.router("fanout", Binding("copies"))
    engine = house.topics.engines.disk
    append, refusals = engine.append, [0]

    def unreliable(stream: StreamId, chunk: Chunk) -> asyncio.Future[None]:
        if stream.topic == "copies" and refusals[0] % 3 != 2:
            refusals[0] += 1
            raise StorageFailed("the disk says no")
        refusals[0] += stream.topic == "copies"
        return append(stream, chunk)

    monkeypatch.setattr(engine, "append", unreliable)
    for i in range(50):
        await house.say(None, b"%d" % i)
    await house.arrives("copies", *[b"%d" % i for i in range(50)])
    assert refusals[0] >= 2


async def test_a_binding_whose_fact_is_not_stored_is_undone(house: RouterHouse) -> None:
    await house.router("direct", Binding("mail/queue", key="a"))

    def refuse(key: bytes, value: bytes | None) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_exception(StorageFailed("the disk says no"))
        return future

    stored = house.routers_ledger.record
    house.routers_ledger.record = refuse  # type: ignore[method-assign]
    for to in ("mail/queue", "copies"):
        with pytest.raises(StorageFailed):
            await house.routers.bind(ANONYMOUS, "events", Binding(to, key="b"))
    house.routers_ledger.record = stored  # type: ignore[method-assign]
    for key in (b"a", b"b"):
        await house.say(key, key)
    assert await house.queue("mail/queue") == [b"a"]
    assert house.routers.describe(ANONYMOUS, "events").bindings == (Binding("mail/queue", key="a"),)
    assert await house.values_of("copies") == []
