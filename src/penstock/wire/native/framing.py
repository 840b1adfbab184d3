"""The binary protocol's preface and frames, and which class stands for which kind of frame.

    preface   0xF0 'P' 'E' 'N' 'S' 'T' 'K' | u8 layout version     once, from the client; nothing answers it
    frame     u32 size of what follows | u8 kind | u32 correlation id | body, a MessagePack array

All numbers big-endian. Requests are of kinds below 0x80, replies and pushes of the others. `wire/receiver.py` tells how
frames are received; a body is decoded without a copy of the record batches in a publish.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

import msgspec

from penstock.wire import receiver
from penstock.wire.native import messages
from penstock.wire.native.messages import Fetched, IncomingPublish, Message, Publish, Step
from penstock.wire.receiver import Buffer

LAYOUT_VERSION: Final = 1
PREFACE: Final = b"\xf0PENSTK" + bytes([LAYOUT_VERSION])

HEAD_BYTES: Final = 9
MIN_FRAME_BYTES: Final = 5  # kind and correlation id: what the size counts at least
MAX_CORRELATION_ID: Final = 0xFFFF_FFFF
FIRST_REPLY_KIND: Final = 0x80

# Many small things take a multiple of their bytes when they are decoded, so only what carries records may be large.
MAX_PLAIN_BYTES: Final = 1 << 20
MAX_STEP_BYTES: Final = 4 << 20

_head = Struct(">IBI")
_kind_and_id = Struct(">BI").unpack_from
_BIN32 = 0xC6
_bin_head = Struct(">BI").pack


class Malformed(Exception):
    """These bytes are not of this protocol; the connection cannot go on."""


class Frame(NamedTuple):
    kind: int
    correlation_id: int
    body: memoryview


class Receiver(receiver.Receiver):
    """`next_frame` gives what stands after the size; `split` takes it apart."""

    Malformed = Malformed

    def preface(self) -> bool:
        """Whether the preface came whole; to be asked before the first frame. Anything else is Malformed."""
        come = self.next_bytes(len(PREFACE))
        if come is None:
            return False
        if come[:-1] != PREFACE[:-1]:
            raise Malformed(f"the preface is {bytes(come)!r}; it should be {PREFACE!r}")
        if come[-1] != LAYOUT_VERSION:
            raise Malformed(f"frames of layout version {come[-1]} are not known here, only {LAYOUT_VERSION}")
        return True


def split(frame: memoryview) -> Frame:
    """What the receiver handed out, taken apart."""
    if len(frame) < MIN_FRAME_BYTES:
        raise Malformed(f"a frame of {len(frame)} bytes; kind and correlation id alone take {MIN_FRAME_BYTES}")
    kind, correlation_id = _kind_and_id(frame)
    return Frame(kind, correlation_id, frame[MIN_FRAME_BYTES:])


# -- kinds --------------------------------------------------------------------------------------------------


def _kinds() -> dict[int, type[Message]]:
    kinds: dict[int, type[Message]] = {}
    for named in vars(messages).values():
        if isinstance(named, type) and issubclass(named, Message) and named not in (Message, IncomingPublish):
            assert named.KIND not in kinds, f"{named.__name__} and {kinds[named.KIND].__name__} are of one kind"
            kinds[named.KIND] = named
    return kinds


KINDS: Final = _kinds()
REQUESTS: Final = {kind: named for kind, named in KINDS.items() if kind < FIRST_REPLY_KIND}
REPLIES: Final = {kind: named for kind, named in KINDS.items() if kind >= FIRST_REPLY_KIND}  # pushes among them

_request_decoders = {
    kind: msgspec.msgpack.Decoder(IncomingPublish if named is Publish else named) for kind, named in REQUESTS.items()
}
_reply_decoders = {kind: msgspec.msgpack.Decoder(named) for kind, named in REPLIES.items()}
_encoder = msgspec.msgpack.Encoder()
_encode_into = _encoder.encode_into

# What a decoder raises for bytes from a stranger: RecursionError for arrays in arrays without end.
_UNDECODABLE = (msgspec.DecodeError, ValueError, RecursionError)


def decode_request(kind: int, body: Buffer) -> Any:
    """A message of REQUESTS, a publish as IncomingPublish, whose batches are views into the body."""
    decoder = _request_decoders.get(kind)
    if decoder is None:
        raise Malformed(f"there is no request of kind {kind:#04x}")
    if len(body) > MAX_PLAIN_BYTES and kind != Publish.KIND:
        _check_size(kind, len(body))
    try:
        return decoder.decode(body)
    except _UNDECODABLE as error:
        raise Malformed(f"{REQUESTS[kind].__name__}: {error}") from None


def _check_size(kind: int, body_bytes: int) -> None:
    allowed_bytes = MAX_STEP_BYTES if kind == Step.KIND else MAX_PLAIN_BYTES
    if body_bytes > allowed_bytes:
        raise Malformed(f"{REQUESTS[kind].__name__} of {body_bytes} bytes; at most {allowed_bytes} are allowed")


def decode_reply(kind: int, body: Buffer) -> Any:
    """A message of REPLIES."""
    decoder = _reply_decoders.get(kind)
    if decoder is None:
        raise Malformed(f"there is no reply of kind {kind:#04x}")
    try:
        return decoder.decode(body)
    except _UNDECODABLE as error:
        raise Malformed(f"{REPLIES[kind].__name__}: {error}") from None


# -- encoding -----------------------------------------------------------------------------------------------


def encode(correlation_id: int, message: Message) -> bytearray:
    """One frame."""
    frame = bytearray(HEAD_BYTES)
    _encode_into(message, frame, HEAD_BYTES)
    _head.pack_into(frame, 0, len(frame) - 4, message.KIND, correlation_id)
    return frame


def encode_fetched(
    correlation_id: int, buffers: Sequence[Buffer], size_bytes: int, next_offset: int, start: int, end: int
) -> list[Buffer]:
    """As `encode` of Fetched, with the stored bytes as they are: nothing is copied."""
    tail = b"".join(map(_encoder.encode, (next_offset, start, end)))
    before = bytes((0x94,)) + _bin_head(_BIN32, size_bytes)  # an array of four, of which the first is bin 32
    frame_bytes = MIN_FRAME_BYTES + len(before) + size_bytes + len(tail)
    return [_head.pack(frame_bytes, Fetched.KIND, correlation_id) + before, *buffers, tail]
