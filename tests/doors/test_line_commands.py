"""The text protocol, command by command, as a person or a small script sees it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from line_house import line_server
from line_talk import Message, Talk

from penstock.doors.line import text_fetch
from penstock.doors.line.door import LineDoor
from penstock.doors.line.text_commands import HANDLERS
from penstock.doors.line.text_publish import NAMES
from penstock.doors.line.text_settle import OUTCOMES
from penstock.doors.line.text_words import error_code
from penstock.model import errors as nouns
from penstock.wire.line.commands import TABLE


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[LineDoor]:
    async with line_server(tmp_path) as (_, door):
        yield door


@pytest.fixture
async def talk(door: LineDoor) -> AsyncIterator[Talk]:
    talk = await Talk.open(door.listener.port)
    yield talk
    await talk.close()


def test_every_command_of_the_table_is_served() -> None:
    assert {syntax.name for syntax in TABLE} == {*HANDLERS, *NAMES, *OUTCOMES}


def test_every_error_has_a_name_of_its_own() -> None:
    tree = [n for n in vars(nouns).values() if isinstance(n, type) and issubclass(n, nouns.PenstockError)]
    codes = {error_code(noun("x")) for noun in tree}
    assert len(codes) == len(tree)
    assert {"unknown-topic", "offset-out-of-range", "lease-lost"} <= codes
    assert all(code.replace("-", "").isalpha() and code.islower() for code in codes)


# -- the log --------------------------------------------------------------------------------------------------


async def test_the_dialogue_of_the_first_design_byte_for_byte(talk: Talk) -> None:
    for _ in range(50):
        await talk.publish("orders", b"-")
    talk.send(b'PUB orders 16\r\n{"order_id":101}')
    assert await talk.exactly(7) == b"OK 50\r\n"
    talk.send(b"FETCH orders 50\r\n")
    assert await talk.exactly(27) == b'MSG 50 16\r\n{"order_id":101}'
    talk.send(b"PING\r\n")
    assert await talk.exactly(6) == b"PONG\r\n"  # nothing stood between


async def test_line_feeds_alone_and_empty_lines_are_fine(talk: Talk) -> None:
    talk.send(b"PUB orders 2\nhi\n\n\r\nFETCH orders 0\n")
    assert await talk.line() == "OK 0"
    assert await talk.message(ends_with_line=False) == Message("0", b"hi")


async def test_a_payload_is_bytes_of_any_kind(talk: Talk) -> None:
    payload = bytes(range(256)) + b"\r\nPING\r\n"
    assert await talk.publish("orders", payload) == "OK 0"
    assert await talk.publish("orders", b"") == "OK 1"
    assert await talk.fetch("orders 0") == Message("0", payload)
    assert await talk.fetch("orders 1") == Message("1", b"")


async def test_a_command_sees_what_those_before_it_did(talk: Talk) -> None:
    talk.send(b"PUB orders 1\r\naPUB orders 1\r\nbFETCH orders 1\r\nPUBLISH orders c\r\nFETCH orders 2\r\n")
    assert await talk.lines(2) == ["OK 0", "OK 1"]
    assert await talk.message(ends_with_line=False) == Message("1", b"b")
    assert await talk.line() == "OK 2"
    assert await talk.message(ends_with_line=False) == Message("2", b"c")


async def test_thousands_of_publishes_in_one_go_are_answered_in_order(talk: Talk) -> None:
    talk.send(b"".join(b"PUB %b 5\r\n%05d" % (b"even" if n % 2 == 0 else b"odd", n) for n in range(20_000)))
    assert await talk.lines(20_000) == [f"OK {n // 2}" for n in range(20_000)]
    assert await talk.fetch("even 9999") == Message("9999", b"19998")


async def test_what_is_published_has_key_headers_and_time(talk: Talk) -> None:
    options = 'key="order 7" header.type=invoice header.note="a \\"b\\"" priority=9 delay=50 ttl=60000'
    options += " timestamp=1700000000000"
    assert await talk.publish("orders", b"x", options) == "OK 0"
    assert await talk.fetch("orders 0 meta=yes") == Message(
        "0",
        b"x",
        'timestamp=1700000000000 key="order 7" header.type=invoice header.note="a \\"b\\"" '
        "header.penstock-delay-ms=50 header.penstock-priority=9 header.penstock-ttl-ms=60000",
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("priority=10", "priority must be a whole number from 0 to 9"),
        ("delay=soon", "delay must be a whole number"),
        ("acks=maybe", "acks must be none, leader or all"),
        ("producer=me", "producer and seq go together"),
        ("partition=-1", "partition must be a whole number"),
        ("partition=7", "none is 7"),
    ],
)
async def test_a_wrong_option_refuses_that_message_only(talk: Talk, options: str, says: str) -> None:
    await talk.ask("CREATE orders partitions=1")
    talk.send(f"PUB orders 1\r\naPUB orders 1 {options}\r\nbPUB orders 1\r\nc")
    first, second, third = await talk.lines(3)
    assert (first, third) == ("OK 0", "OK 1")
    assert second.startswith("ERR ")
    assert says in second


async def test_a_message_too_large_for_its_topic_is_not_its_neighbours_failure(talk: Talk) -> None:
    await talk.ask("CREATE small max.message.bytes=200")
    talk.send(b"PUB small 1\r\naPUB small 1000\r\n" + b"x" * 1000 + b"PUB small 1\r\nb")
    first, second, third = await talk.lines(3)
    assert (first, third) == ("OK 0", "OK 1")
    assert second.startswith("ERR record-too-large ")


async def test_a_numbered_message_that_comes_twice_is_stored_once(talk: Talk) -> None:
    for number, offset in ((1, 0), (2, 1), (2, 1), (1, 0), (5, 2)):
        assert await talk.publish("orders", b"%d" % number, f"producer=till-1 seq={number}") == f"OK {offset}"


async def test_nobody_waits_for_acks_of_none(talk: Talk) -> None:
    assert await talk.publish("orders", b"x", "acks=none") == "OK -1"
    assert (await talk.fetch("orders 0 wait=10000")).payload == b"x"


async def test_partitions_are_named_where_there_are_several(talk: Talk) -> None:
    assert await talk.ask("CREATE orders partitions=3") == "OK"
    assert await talk.publish("orders", b"x", "partition=2") == "OK 2:0"
    assert await talk.fetch("orders 2:0") == Message("2:0", b"x")
    assert await talk.ask("FETCH orders 0") == (
        "ERR invalid-request topic orders has 3 partitions: say partition:offset, as in 0:50"
    )
    assert (await talk.ask("FETCH orders 7:0")).startswith("ERR unknown-partition ")
    talk.send("FETCH orders 2:0 count=5\r\n")
    assert await talk.message() == Message("2:0", b"x")
    assert await talk.line() == "END 2:1"


async def test_an_offset_that_is_not_there_says_which_are(talk: Talk) -> None:
    await talk.publish("orders", b"x")
    for offset in (1, 9):
        assert await talk.ask(f"FETCH orders {offset}") == (
            f"ERR offset-out-of-range topic orders has no message {offset} (start=0 end=1)"
        )
    assert await talk.ask("FETCH orders first") == (
        "ERR invalid-request an offset must be a whole number from 0 to 9223372036854775807, not 'first'"
    )
    assert (await talk.ask("FETCH nowhere 0")).startswith("ERR unknown-topic ")


async def test_many_are_fetched_at_once_and_the_end_says_where_to_go_on(talk: Talk) -> None:
    for number in range(5):
        await talk.publish("orders", b"%d" % number)
    talk.send("FETCH orders 1 count=3\r\nFETCH orders 4 count=10\r\nFETCH orders 5 count=10\r\n")
    assert [await talk.message() for _ in range(3)] == [Message(str(n), b"%d" % n) for n in (1, 2, 3)]
    assert await talk.line() == "END 4"
    assert await talk.message() == Message("4", b"4")
    assert await talk.line() == "END 5"
    assert await talk.line() == "END 5"


async def test_a_fetch_may_wait_for_what_comes(door: LineDoor, talk: Talk) -> None:
    await talk.publish("orders", b"first")
    talk.send("FETCH orders 1 wait=60000\r\nPING\r\n")
    other = await Talk.open(door.listener.port)
    assert await other.publish("orders", b"second") == "OK 1"
    assert await talk.message(ends_with_line=False) == Message("1", b"second")
    assert await talk.line() == "PONG"
    assert (await talk.ask("FETCH orders 2 wait=1")).startswith("ERR offset-out-of-range ")
    await other.close()


async def test_a_deleted_topic_is_made_anew_by_the_next_publish(talk: Talk) -> None:
    assert [await talk.publish("orders", b"x") for _ in range(2)] == ["OK 0", "OK 1"]
    assert await talk.ask("DELETE orders") == "OK"
    assert await talk.publish("orders", b"y") == "OK 0"
    assert (await talk.fetch("orders 0")).payload == b"y"


async def test_fetching_goes_on_where_it_stopped_and_everywhere_else(door: LineDoor, talk: Talk) -> None:
    await talk.publish("orders", b"a")
    talk.send(b"".join(b"PUB orders 3\r\n%03d" % n for n in range(1, 500)))
    await talk.lines(499)
    for offset in (*range(1, 20), 300, 300, 5, *range(490, 500)):
        assert await talk.fetch(f"orders {offset}") == Message(str(offset), b"%03d" % offset)
    await talk.ask("DELETE orders")
    talk.send(b"".join(b"PUB orders 3\r\nnew" for _ in range(501)))
    await talk.lines(501)
    assert await talk.fetch("orders 500") == Message("500", b"new")  # of another topic than the reader left there


async def test_readers_that_fetches_leave_are_bounded(door: LineDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_fetch, "MAX_LEFT", 2)
    talks = [await Talk.open(door.listener.port) for _ in range(4)]
    await talks[0].publish("orders", b"a")
    await talks[0].publish("orders", b"b")
    for offset in (0, 1):
        for talk in talks:
            assert await talk.fetch(f"orders {offset}") == Message(str(offset), b"ab"[offset : offset + 1])
    assert len(door.left_readers) == 2
    for talk in talks:
        await talk.close()
    async with asyncio.timeout(10):
        while len(door.left_readers):
            door.listener._changed.clear()
            await door.listener._changed.wait()


# -- groups, topics, and the rest -----------------------------------------------------------------------------


async def test_a_group_goes_on_where_it_committed(talk: Talk) -> None:
    for number in range(3):
        await talk.publish("orders", b"%d" % number)
    assert await talk.ask("COMMITTED mail orders") == "OK"
    assert await talk.ask("COMMIT mail orders 2") == "OK"
    assert await talk.ask("COMMITTED mail orders") == "OK 2"
    assert await talk.ask("SUBSCRIBE orders/log group=mail") == "OK orders/log"
    assert await talk.message() == Message("orders:0:2", b"2")
    assert (await talk.ask("COMMIT mail nowhere 2")).startswith("ERR unknown-topic ")
    assert (await talk.ask("COMMIT mail orders 1:0")).startswith("ERR invalid-request ")


async def test_topics_are_made_listed_and_deleted(talk: Talk) -> None:
    assert await talk.ask("CREATE b partitions=2 retention.ms=60000") == "OK"
    assert await talk.ask("create a") == "OK"
    talk.send("TOPICS\r\n")
    assert await talk.until_end() == ["TOPIC a partitions=1", "TOPIC b partitions=2"]
    assert await talk.ask("CREATE a") == "ERR topic-exists topic 'a' exists already"
    assert (await talk.ask("CREATE b@d")).startswith("ERR invalid-topic-name ")
    assert (await talk.ask("CREATE c colour=red")).startswith("ERR invalid-setting ")
    assert (await talk.ask("CREATE c partitions=0")).startswith("ERR invalid-request ")
    assert await talk.ask("DELETE a") == "OK"
    assert (await talk.ask("DELETE a")).startswith("ERR unknown-topic ")


async def test_a_person_finds_help(talk: Talk) -> None:
    assert await talk.ask("WHAT") == "ERR unknown-command there is no command WHAT; HELP lists what there is"
    talk.send("help\r\n")
    listed = await talk.until_end()
    assert listed[0].startswith("PUB <topic> <size>")
    talk.send("HELP subscribe\r\n")
    about = await talk.until_end()
    assert any("credit=" in line for line in about)
    assert (await talk.ask("HELP WHAT")).startswith("ERR invalid-request ")
    assert await talk.ask("AUTH me secret") == "OK no login is needed: this server knows no users"


async def test_quit_says_goodbye_and_nothing_after_it_is_done(talk: Talk) -> None:
    talk.send("PUBLISH orders a\r\nQUIT\r\nPUBLISH orders b\r\n")
    assert await talk.rest() == b"OK 0\r\nBYE\r\n"


async def test_who_closes_its_side_gets_all_answers_first(door: LineDoor, talk: Talk) -> None:
    talk.send(b"PUB orders 1\r\na" * 1000 + b"FETCH orders 999")
    talk.writer.write_eof()
    answers = await talk.rest()
    assert answers == b"".join(b"OK %d\r\n" % n for n in range(1000)) + b"MSG 999 1\r\na"
    async with asyncio.timeout(10):
        while door.limits.connections:
            door.listener._changed.clear()
            await door.listener._changed.wait()
    assert door.limits.held_bytes == 0
