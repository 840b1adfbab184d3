"""Frames and messages of the binary protocol, cut in any pieces, and what is not one of them."""

import contextlib
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native_messages import ANYTHING, messages_of
from penstock.wire.native.framing import (
    HEAD_BYTES,
    MAX_PLAIN_BYTES,
    PREFACE,
    REPLIES,
    REQUESTS,
    Malformed,
    Receiver,
    decode_reply,
    decode_request,
    encode,
    encode_fetched,
    split,
)
from penstock.wire.native.messages import (
    MAX_BATCHES,
    Batch,
    Fetched,
    Hello,
    IncomingPublish,
    Message,
    Ping,
    Publish,
    Settle,
    Step,
    StepMessage,
)

MAX_FRAME_BYTES = 1 << 20
IDS = st.integers(0, 2**32 - 1)

NUMBERS = ANYTHING[int]
MESSAGES = st.one_of([messages_of(kind) for kind in (*REQUESTS.values(), *REPLIES.values())])


def decoded(frame: memoryview) -> tuple[int, Any]:
    kind, correlation_id, body = split(frame)
    return correlation_id, (decode_request if kind < 0x80 else decode_reply)(kind, body)


def same(come: Any, sent: Message) -> bool:
    if isinstance(come, IncomingPublish):
        come = Publish(come.acks, [Batch(b.topic, b.partition, bytes(b.batch)) for b in come.batches])
    return bool(come == sent)


# -- what is sent arrives -----------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(IDS, MESSAGES), max_size=6), st.integers(1, 60), st.binary(max_size=3))
def test_in_any_pieces_with_a_tail(sent: list[tuple[int, Message]], piece: int, tail: bytes) -> None:
    stream = b"".join(encode(*one) for one in sent) + tail
    receiver = Receiver(MAX_FRAME_BYTES)
    come = [decoded(frame) for at in range(0, len(stream), piece) for frame in receiver.feed(stream[at : at + piece])]
    assert [correlation_id for correlation_id, _ in come] == [correlation_id for correlation_id, _ in sent]
    assert all(same(a, b) for (_, a), (_, b) in zip(come, sent, strict=True))
    assert receiver.waiting_bytes == len(tail)


def test_byte_by_byte_after_the_preface() -> None:
    stream = PREFACE + encode(7, Hello(1, "x")) + encode(8, Ping())
    receiver, come, greeted = Receiver(MAX_FRAME_BYTES), [], False
    for at in range(len(stream)):
        receiver.get_buffer()[:1] = stream[at : at + 1]
        receiver.received(1)
        if not greeted:
            greeted = receiver.preface()
            assert greeted == (at >= len(PREFACE) - 1)
        while greeted and (frame := receiver.next_frame()) is not None:
            come.append(decoded(frame))
    assert come == [(7, Hello(1, "x")), (8, Ping())]


def test_batches_of_a_publish_are_not_copied() -> None:
    sent = encode(1, Publish(-1, [Batch("t", 0, b"a" * 100_000), Batch("t", 1, b"b" * 10)]))
    (frame,) = Receiver(MAX_FRAME_BYTES).feed(sent)
    _, publish = decoded(frame)
    assert all(batch.batch.obj is frame.obj for batch in publish.batches)
    publish.batches[0].batch[0] = 0x7A  # the log stamps offsets into them
    assert bytes(frame).count(b"z") == 1


@given(st.lists(st.binary(max_size=300), max_size=4), NUMBERS, NUMBERS, NUMBERS)
def test_stored_bytes_leave_as_they_are(buffers: list[bytes], next_offset: int, start: int, end: int) -> None:
    parts = encode_fetched(9, buffers, sum(map(len, buffers)), next_offset, start, end)
    assert all(any(part is buffer for part in parts) for buffer in buffers)
    (frame,) = Receiver(MAX_FRAME_BYTES).feed(b"".join(parts))
    assert decoded(frame) == (9, Fetched(b"".join(buffers), next_offset, start, end))


def test_fields_of_a_later_version_are_passed_over() -> None:
    body = msgspec.msgpack.encode([1, "x", None, None, {"new": [1, 2]}, 3.5])
    assert decode_request(Hello.KIND, body) == Hello(1, "x")


# -- what is not of this protocol ---------------------------------------------------------------------------


@pytest.mark.parametrize("preface", [b"\xf0PENSTX\x01", b"\xf0GET / H", b"\xf0PENSTK\x02", b"\xf0PENSTK\x00"])
def test_another_preface_is_refused(preface: bytes) -> None:
    receiver = Receiver(MAX_FRAME_BYTES)
    assert receiver.preface() is False
    receiver.get_buffer()[: len(preface)] = preface
    receiver.received(len(preface))
    with pytest.raises(Malformed):
        receiver.preface()


@pytest.mark.parametrize("size", range(5))
def test_a_frame_too_short_for_its_head(size: int) -> None:
    (frame,) = Receiver(MAX_FRAME_BYTES).feed(size.to_bytes(4, "big") + bytes(size))
    with pytest.raises(Malformed, match=f"a frame of {size} bytes"):
        split(frame)


@pytest.mark.parametrize("size", [MAX_FRAME_BYTES + 1, 2**31, 2**32 - 1])
def test_a_frame_too_large_is_refused_at_its_size(size: int) -> None:
    with pytest.raises(Malformed):
        Receiver(MAX_FRAME_BYTES).feed(size.to_bytes(4, "big"))


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(sorted(REQUESTS)), st.binary(max_size=200))
def test_garbage_is_malformed_and_nothing_else(kind: int, body: bytes) -> None:
    with contextlib.suppress(Malformed):
        assert isinstance(decode_request(kind, body), Message)


@settings(max_examples=300, deadline=None)
@given(MESSAGES, st.data())
def test_damaged_messages_are_malformed_or_messages(message: Message, data: st.DataObject) -> None:
    body = bytearray(encode(1, message)[HEAD_BYTES:])
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] = data.draw(st.integers(0, 255))
    body = body[: data.draw(st.integers(0, len(body)))]
    decode = decode_request if message.KIND < 0x80 else decode_reply
    with contextlib.suppress(Malformed):
        assert isinstance(decode(message.KIND, body), Message)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x90",  # fields are missing
        b"\x92\x01\xa2\xff\xfe",  # not UTF-8
        b"\x92\xa1x\xa1x",  # of the wrong type
        b"\x81\x01\x02",  # no array
        b"\x92\x01\xa1xtail",
        b"\x92\x01\xdb\xff\xff\xff\xff",  # longer than what is there
        b"\x95\x01\xa1x\xc0\xc0" + b"\x91" * 100_000,  # arrays in arrays, where a later version's field would be
    ],
)
def test_bodies_that_are_no_hello(body: bytes) -> None:
    with pytest.raises(Malformed, match="Hello"):
        decode_request(Hello.KIND, body)


def test_kinds_that_nobody_knows() -> None:
    for kind in set(range(256)) - REQUESTS.keys():
        with pytest.raises(Malformed, match=f"{kind:#04x}"):
            decode_request(kind, b"\x90")
    for kind in set(range(256)) - REPLIES.keys():
        with pytest.raises(Malformed, match=f"{kind:#04x}"):
            decode_reply(kind, b"\x90")


# -- bounds -------------------------------------------------------------------------------------------------


def peak_bytes(kind: int, body: bytes) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(Malformed):
            decode_request(kind, body)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_number_of_things_that_do_not_come_takes_no_memory() -> None:
    for claim in (b"\xdd\x7f\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xc6\x7f\xff\xff\xff"):
        for kind in REQUESTS:
            assert peak_bytes(kind, claim) < 100_000
            assert peak_bytes(kind, b"\x9f" + claim) < 100_000
            assert peak_bytes(kind, b"\x92\xff" + claim) < 100_000


def test_many_small_things_are_refused_before_they_are_made() -> None:
    batch = b"\x93\xa0\x00\xc4\x00"
    publish = b"\x92\xff\xdd" + (1_000_000).to_bytes(4, "big") + batch * 1_000_000
    assert peak_bytes(Publish.KIND, publish) < 100_000
    receipts = b"\x96\xa0\xa0\xa3ack\xdd" + (1_000_000).to_bytes(4, "big") + b"\x92\x00\x00" * 1_000_000 + b"\xc0\xc0"
    assert len(receipts) > MAX_PLAIN_BYTES
    assert peak_bytes(Settle.KIND, receipts) < 100_000


def test_as_many_as_are_allowed() -> None:
    most = [Batch("t", 0, b"")] * MAX_BATCHES
    body = encode(1, Publish(-1, most))[HEAD_BYTES:]
    assert len(decode_request(Publish.KIND, body).batches) == MAX_BATCHES
    with pytest.raises(Malformed):
        decode_request(Publish.KIND, encode(1, Publish(-1, [*most, most[0]]))[HEAD_BYTES:])
    steps = [StepMessage("t", None, None)] * (MAX_BATCHES + 1)
    with pytest.raises(Malformed):
        decode_request(Step.KIND, encode(1, Step("t", "v", "s", [], steps))[HEAD_BYTES:])
