"""docs/protocol.md is held to the code, and its test vectors to a reader written from that page alone."""

import dataclasses
import re
from typing import Any

import pytest
from protocol_page import PAGE, TABLES, table, vectors

from page_client import Page, castagnoli, murmur2_of_the_page
from penstock.broker.queues import Counts, Match, Outcome
from penstock.doors.line import binary, binary_push, binary_queues
from penstock.doors.line.binary_api import CODES, INTERNAL_ERROR, MALFORMED
from penstock.model.batch import check_batch, decode_batch, encode_batch
from penstock.model.partitioner import murmur2, partition_for_key
from penstock.model.record import Record
from penstock.wire.native import framing, messages
from penstock.wire.native.framing import (
    KINDS,
    PREFACE,
    REPLIES,
    REQUESTS,
    Receiver,
    decode_reply,
    decode_request,
    split,
)
from penstock.wire.native.messages import (
    Batch,
    CommitStep,
    Deliveries,
    Done,
    Failure,
    Fetch,
    Hello,
    Leased,
    Message,
    OpenWriter,
    Publish,
    Published,
    Settle,
    Settled,
    Stored,
    SubscribeQueue,
    Welcome,
    Writer,
)

TEXT = PAGE.read_text()
VECTORS = vectors(TEXT)

TIME_MS = 1_700_000_000_000
ORDERS = [
    Record(0, TIME_MS, b"order-1", b"paid", (("source", b"web"),)),
    Record(1, TIME_MS + 5, None, b"shipped"),
]
LEASED = [Record(41, TIME_MS, b"order-1", b"paid"), Record(43, TIME_MS + 5, None, None)]
NUMBERS = [1_700_000_000_000_001, 1_700_000_000_000_002]

ORDERS_BATCH = bytes(encode_batch(ORDERS, producer_id=1000, producer_epoch=0, base_sequence=0))
LEASED_BATCH = bytes(encode_batch(LEASED))

MEANT: dict[str, tuple[int, Message]] = {
    "hello": (1, Hello(1, "docs")),
    "welcome": (1, Welcome(1, "penstock 0.1.0", "k3Xc0Wq2S6m5dV9yTzB1aA", 104_857_600)),
    "publish": (2, Publish(-1, [Batch("orders", 0, ORDERS_BATCH)])),
    "published": (2, Published([Stored(7)])),
    "fetch": (6, Fetch("orders", 0, 7, 1_048_576, 500)),
    "subscribe-queue": (3, SubscribeQueue("orders", "mail", 100)),
    "done": (3, Done()),
    "deliveries": (3, Deliveries([Leased("orders", 2, 5, LEASED_BATCH, NUMBERS, [1, 3])])),
    "settle": (4, Settle("orders", "mail", "ack", [(5 << 48 | 41, NUMBERS[0])])),
    "settled": (4, Settled([])),
    "open-writer": (8, OpenWriter("sink", 7, "task 0")),
    "writer": (8, Writer(1000, 0)),
    "commit-step": (9, CommitStep("sink", 7, [1000], "orders:500", [("sink", "orders", 0, 500)])),
    "failure": (5, Failure("unknown-topic", "there is no topic 'x'", True)),
}


def plain(value: Any) -> Any:
    """A message as the arrays it is written as."""
    if hasattr(value, "__struct_fields__"):
        return [plain(getattr(value, field)) for field in value.__struct_fields__]
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


# -- vectors ------------------------------------------------------------------------------------------------


def test_every_vector_is_meant_by_somebody() -> None:
    assert VECTORS.keys() == MEANT.keys() | {"preface", "subscribe-queue-short"}
    assert VECTORS["preface"] == PREFACE


@pytest.mark.parametrize("name", MEANT)
def test_we_write_the_vector(name: str) -> None:
    correlation_id, message = MEANT[name]
    assert bytes(framing.encode(correlation_id, message)).hex(" ") == VECTORS[name].hex(" ")


@pytest.mark.parametrize("name", MEANT)
def test_we_read_the_vector(name: str) -> None:
    (frame,) = Receiver(1 << 20).feed(VECTORS[name])
    kind, correlation_id, body = split(frame)
    read = (decode_request if kind < 0x80 else decode_reply)(kind, body)
    assert (correlation_id, plain(read)) == (MEANT[name][0], plain(MEANT[name][1]))


@pytest.mark.parametrize("name", MEANT)
def test_a_reader_made_from_the_page_reads_the_vector(name: str) -> None:
    correlation_id, message = MEANT[name]
    assert Page(VECTORS[name]).frame() == (message.KIND, correlation_id, plain(message))


def test_fields_with_a_default_may_be_left_out() -> None:
    kind, correlation_id, body = split(Receiver(1 << 20).feed(VECTORS["subscribe-queue-short"])[0])
    assert (correlation_id, decode_request(kind, body)) == MEANT["subscribe-queue"]


def test_a_reader_made_from_the_page_reads_the_batches() -> None:
    (published,) = Page(VECTORS["publish"]).frame()[2][1]
    head, records = Page(published[2]).batch()
    assert (head["producer_id"], head["producer_epoch"], head["base_sequence"]) == (1000, 0, 0)
    assert records == [record._content() for record in ORDERS]
    (leased,) = Page(VECTORS["deliveries"]).frame()[2][0]
    head, records = Page(leased[3]).batch()
    assert (head["base_offset"], head["last_offset_delta"]) == (41, 2)
    assert records == [record._content() for record in LEASED]
    for batch in (published[2], leased[3]):
        check_batch(batch)
    assert decode_batch(published[2]) == ORDERS


def test_what_settle_names_is_what_deliveries_brought() -> None:
    (leased,) = Page(VECTORS["deliveries"]).frame()[2][0]
    _topic, _partition, stream, batch, numbers, _attempts = leased
    receipts = Page(VECTORS["settle"]).frame()[2][3]
    offset = Page(batch).batch()[1][0][0]
    assert receipts == [[stream << 48 | offset, numbers[0]]]


def test_keys_go_where_the_page_says() -> None:
    rows = re.findall(r"\| (\(empty\)|`\S+`) \| `(0x\w{8})` \| (\d+) \|", TEXT)
    assert len(rows) == 7
    for told, hashed, partition in rows:
        key = b"" if told == "(empty)" else told.strip("`").encode()
        assert murmur2_of_the_page(key) == murmur2(key) == int(hashed, 16)
        assert partition_for_key(key, 12) == int(partition)


def test_the_checksum_of_the_page() -> None:
    assert castagnoli(b"123456789") == 0xE3069283
    assert "`0xe3069283`" in TEXT


# -- tables and numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_are_those_of_the_code(name: str) -> None:
    assert table(TEXT, name) == TABLES[name](), "python tests/wire/native/protocol_page.py writes them"


def test_every_request_has_its_answer_told() -> None:
    told: dict[str, str] = {}
    section = TEXT.partition("### What answers what")[2].partition("\n## ")[0]
    for requests, answer in re.findall(r"^\| ([\w, ]+) \| (.+) \|$", section, re.MULTILINE):
        told |= dict.fromkeys(requests.split(", "), answer)
    del told["request"]
    assert told.keys() == {kind.__name__ for kind in REQUESTS.values()}
    replies = {kind.__name__ for kind in REPLIES.values()}
    assert {name for answer in told.values() for name in re.findall(r"[A-Z]\w+", answer)} == replies - {"Failure"}


def test_every_error_is_told() -> None:
    told = dict(re.findall(r"^\| `([a-z-]+)` \| (yes|no) \|", TEXT, re.MULTILINE))
    meant = {code: "yes" if noun.retriable else "no" for noun, code in CODES.items()}
    assert told == meant | {MALFORMED: "no", INTERNAL_ERROR: "no"}


def test_the_bounds_are_those_of_the_code() -> None:
    page = " ".join(TEXT.split())
    for said in (
        f"{binary.MAX_REQUESTS_UNDER_WAY} requests under way",
        f"{binary.MAX_HELD_BYTES >> 20} MiB of them",
        f"at most {binary.MAX_SUBSCRIPTIONS} subscriptions",
        f"{messages.MAX_BATCHES:,} batches",
        f"up to {messages.MAX_DESCRIBED:,} topics",
        f"Step ({framing.MAX_STEP_BYTES >> 20} MiB, {messages.MAX_BATCHES:,} messages)",
        f"at most {framing.MAX_PLAIN_BYTES >> 20} MiB",
        f"a credit of messages, at most {binary_push.MAX_CREDIT:,}",
        f"({binary_queues.MAX_LEASED:,} at most)",
        f"at most {binary_queues.AT_MOST_ONCE_CREDIT} are with it",
        f"about {binary_queues.HELD_BYTES >> 20} MiB at once",
    ):
        assert said in page, said


def test_the_names_in_maps_are_told() -> None:
    page = " ".join(TEXT.split())
    counts = [f"`{field.name}`" for field in dataclasses.fields(Counts)]
    assert f"`counts` has {', '.join(counts[:-1])} and {counts[-1]}" in page
    match = page.partition("- `Match` is")[2].partition("- `Settings`")[0]
    assert all(f"`{name}`" in match for name in Match.__struct_fields__)
    outcomes = page.partition("**Settle** says")[2].partition("Settled lists")[0]
    assert all(f"| `{outcome.value}` |" in outcomes for outcome in Outcome)


def test_kinds_say_which_way_they_go() -> None:
    assert all(kind < 0x80 for kind in REQUESTS)
    assert all(kind >= 0x80 for kind in REPLIES)
    assert KINDS == REQUESTS | REPLIES
