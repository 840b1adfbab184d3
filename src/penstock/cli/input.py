"""What is to be published: lines, JSON or a whole, read as it comes and made into messages; and a count of them."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from penstock.cli.render import parse_json_line
from penstock.cli.terminal import CommandFailed
from penstock.client.message import Outgoing
from penstock.model.record import Headers

READ_BYTES = 256 << 10
LINE_BYTES_MAX = 128 << 20


class Input(StrEnum):
    lines = "lines"
    json = "json"
    whole = "whole"


class Tally:
    """What the server has acknowledged."""

    def __init__(self) -> None:
        self.records = 0
        self._partitions: dict[int, tuple[int, int, int]] = {}

    def add(self, partition: int, offset: int) -> None:
        self.records += 1
        first, _, before = self._partitions.get(partition, (offset, 0, 0))
        self._partitions[partition] = (first, offset, before + 1)

    def as_list(self) -> list[dict[str, int]]:
        return [
            {"partition": partition, "first_offset": first, "last_offset": last, "records": count}
            for partition, (first, last, count) in sorted(self._partitions.items())
        ]


@dataclass(slots=True)
class Maker:
    """Turns pieces of input into messages."""

    form: Input
    key: str | None
    key_separator: str | None
    headers: dict[str, str]
    partition: int | None
    empty_is_null: bool
    delay_s: float | None
    ttl_s: float | None
    priority: int | None
    _seen: int = 0

    def make(self, pieces: Iterable[bytes]) -> list[Outgoing]:
        made = map(self._make, pieces)
        return [message for message in made if message is not None]

    def _make(self, piece: bytes) -> Outgoing | None:
        """None for an empty line of JSON input, which means nothing."""
        self._seen += 1
        if self.form is not Input.json:
            return self._from_text(piece)
        return self._from_json(piece) if piece.strip() else None

    def _from_text(self, piece: bytes) -> Outgoing:
        key: str | bytes | None = self.key
        value: bytes | None = piece
        if self.key_separator is not None:
            key, separator, value = piece.partition(self.key_separator.encode())
            if not separator:
                raise CommandFailed(f"line {self._seen} has no key separator {self.key_separator!r}")
        if self.empty_is_null and not value:
            value = None
        return self._outgoing(key, value, (), None)

    def _from_json(self, line: bytes) -> Outgoing:
        try:
            parsed = parse_json_line(line)
        except ValueError as error:
            raise CommandFailed(f"line {self._seen} is {error}") from None
        # The message's own partition is where it once stood; here the key decides, unless the person does.
        key = parsed.key if self.key is None else self.key
        return self._outgoing(key, parsed.value, parsed.headers, parsed.timestamp_ms)

    def _outgoing(
        self, key: str | bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int | None
    ) -> Outgoing:
        return Outgoing(
            value,
            key,
            [*headers, *self.headers.items()],
            self.partition,
            timestamp_ms,
            delay_s=self.delay_s,
            ttl_s=self.ttl_s,
            priority=self.priority,
        )


def lines(descriptor: int) -> Iterator[list[bytes]]:
    """The lines that have come, as they come: what is typed or trickles in does not wait for more."""
    begun = bytearray()  # a line whose end has not come yet
    while data := os.read(descriptor, READ_BYTES):
        *ended, rest = data.split(b"\n")
        if ended:
            ended[0] = bytes(begun) + ended[0]
            begun.clear()
            yield [line.removesuffix(b"\r") for line in ended]
        begun += rest
        if len(begun) > LINE_BYTES_MAX:
            raise CommandFailed(
                f"a line is longer than {LINE_BYTES_MAX} bytes; use --input whole for one large message"
            )
    if begun:
        yield [bytes(begun)]


def whole(descriptor: int) -> Iterator[list[bytes]]:
    parts = []
    size_bytes = 0
    while data := os.read(descriptor, READ_BYTES):
        parts.append(data)
        size_bytes += len(data)
        if size_bytes > LINE_BYTES_MAX:
            raise CommandFailed(f"the input is larger than {LINE_BYTES_MAX} bytes")
    yield [b"".join(parts)]
