"""`penstock produce`: lines, JSON or whole files into a topic."""

import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated

import typer

from penstock.cli import options
from penstock.cli.options import connect, pairs
from penstock.cli.render import Parsed, parse_json_line
from penstock.cli.terminal import counting, done, guarded, note, print_json
from penstock.client.kafka.errors import ClientError, Invalid
from penstock.client.kafka.producer import Producer

READ_BYTES = 256 << 10
LINE_BYTES_MAX = 128 << 20
# Input that pauses for so long is sent: what is typed or trickles in must not wait for a batch to fill.
LINGER_S = 0.02


class Compression(StrEnum):
    none = "none"
    gzip = "gzip"
    snappy = "snappy"
    lz4 = "lz4"
    zstd = "zstd"


class Input(StrEnum):
    lines = "lines"
    json = "json"
    whole = "whole"


@guarded
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")],
    values: Annotated[
        list[str] | None,
        typer.Option("--value", "-v", help="A message, instead of standard input. Repeatable."),
    ] = None,
    file: Annotated[str | None, typer.Option("--file", "-F", help="Read messages from this file.")] = None,
    form: Annotated[
        Input,
        typer.Option(
            "--input",
            help="What the input is: a message per line, a JSON object per line (as 'penstock consume --json' writes "
            "it), or one message as a whole.",
        ),
    ] = Input.lines,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of every message.")] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", help="A line is a key, this, and a value.")
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header of every message. Repeatable."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Partition.", show_default="by the key")
    ] = None,
    compression: Annotated[
        Compression, typer.Option("--compression", "-z", help="How batches are compressed.")
    ] = Compression.none,
    empty_is_null: Annotated[
        bool, typer.Option("--empty-is-null", help="An empty value is a tombstone: it deletes its key by compaction.")
    ] = False,
    create: Annotated[bool, typer.Option("--create/--no-create", help="Create the topic on first use.")] = True,
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Send messages to a topic over Kafka's protocol, to any server that speaks it.

    They come from standard input, line by line, unless told otherwise. The command is done when the server has
    acknowledged all of them.
    """
    if values and file:
        raise typer.BadParameter("choose one of --value and --file")
    if key is not None and key_separator is not None:
        raise typer.BadParameter("choose one of --key and --key-separator")
    if key_separator == "":
        raise typer.BadParameter("it is empty", param_hint="--key-separator")
    maker = Maker(form, key, key_separator, pairs(headers, "--header"), partition, empty_is_null)
    tally = Tally()
    began = time.monotonic()
    with connect(server, timeout_s) as cluster:
        producer = Producer(cluster, topic, compression=compression.value, create=create, stored=tally.add)
        try:
            try:
                if values:
                    _send(producer, maker, [value.encode() for value in values])
                else:
                    _send_input(producer, maker, tally, file)
            except KeyboardInterrupt:
                note("interrupted: what follows was not sent")
            producer.flush()
        except ClientError as error:
            raise ClientError(f"{error} ({tally.records:,} records were acknowledged before that)") from None
    if as_json:
        print_json({"topic": topic, "records": tally.records, "partitions": tally.as_list()})
    else:
        places = ", ".join(f"partition {one['partition']} to offset {one['last_offset']}" for one in tally.as_list())
        took_s = time.monotonic() - began
        done(
            f"{tally.records:,} record{'s'[: tally.records != 1]} in {took_s:.2f} s" + (f": {places}" if places else "")
        )


class Tally:
    """What the server has acknowledged."""

    def __init__(self) -> None:
        self.records = 0
        self._partitions: dict[int, tuple[int, int, int]] = {}

    def add(self, partition: int, base_offset: int, count: int) -> None:
        self.records += count
        first, _, before = self._partitions.get(partition, (base_offset, 0, 0))
        self._partitions[partition] = (first, base_offset + count - 1, before + count)

    def as_list(self) -> list[dict[str, int]]:
        return [
            {"partition": partition, "first_offset": first, "last_offset": last, "records": count}
            for partition, (first, last, count) in sorted(self._partitions.items())
        ]


class Maker:
    """Turns pieces of input into records."""

    def __init__(
        self,
        form: Input,
        key: str | None,
        key_separator: str | None,
        headers: dict[str, str],
        partition: int | None,
        empty_is_null: bool,
    ) -> None:
        self.form = form
        self._key = key.encode() if key is not None else None
        self._key_separator = key_separator.encode() if key_separator is not None else None
        self._headers = tuple((name, value.encode()) for name, value in headers.items())
        self._partition = partition
        self._empty_is_null = empty_is_null
        self._seen = 0

    def make(self, piece: bytes) -> Parsed | None:
        """None for an empty line of JSON input, which means nothing."""
        self._seen += 1
        if self.form is Input.json:
            return self._from_json(piece) if piece.strip() else None
        key: bytes | None = self._key
        value: bytes | None = piece
        if self._key_separator is not None:
            key, separator, value = piece.partition(self._key_separator)
            if not separator:
                raise Invalid(f"line {self._seen} has no key separator {self._key_separator.decode()!r}")
        if self._empty_is_null and not value:
            value = None
        return Parsed(key, value, self._headers, self._partition, None)

    def _from_json(self, line: bytes) -> Parsed:
        try:
            parsed = parse_json_line(line)
        except ValueError as error:
            raise Invalid(f"line {self._seen} is {error}") from None
        # The record's own partition is where it once stood; here the key decides, unless the person does.
        return parsed._replace(
            key=parsed.key if self._key is None else self._key,
            headers=parsed.headers + self._headers,
            partition=self._partition,
        )


def _send(producer: Producer, maker: Maker, pieces: Sequence[bytes]) -> None:
    """Send what has come; nothing means that the input pauses."""
    for piece in pieces:
        record = maker.make(piece)
        if record is not None:
            producer.send(record.value, record.key, record.headers, record.partition, record.timestamp_ms)
    if not pieces and producer.waiting:
        producer.flush()


def _send_input(producer: Producer, maker: Maker, tally: Tally, file: str | None) -> None:
    try:
        descriptor = os.open(file, os.O_RDONLY) if file else sys.stdin.fileno()
    except OSError as error:
        raise Invalid(f"cannot read {file}: {(error.strerror or str(error)).lower()}") from None
    interactive = os.isatty(descriptor)
    if interactive:
        note("one message per line; Ctrl-D ends")
    total_bytes = os.fstat(descriptor).st_size if file else None
    try:
        with counting("records", in_bytes=bool(total_bytes), shown=not interactive) as progress:
            task = progress.add_task("Producing", total=total_bytes)
            read_bytes = 0
            pieces = whole(descriptor) if maker.form is Input.whole else lines(descriptor)
            for some in pieces:
                _send(producer, maker, some)
                read_bytes += sum(map(len, some)) + len(some)
                progress.update(task, completed=read_bytes if total_bytes else tally.records)
    finally:
        if file:
            os.close(descriptor)


def lines(descriptor: int) -> Iterator[list[bytes]]:
    """The lines that have come, as they come; an empty list whenever nothing comes for a while."""
    begun = bytearray()  # a line whose end has not come yet
    while True:
        if not select.select([descriptor], [], [], LINGER_S)[0]:
            yield []
            select.select([descriptor], [], [])
        data = os.read(descriptor, READ_BYTES)
        if not data:
            break
        *ended, rest = data.split(b"\n")
        if ended:
            ended[0] = bytes(begun) + ended[0]
            begun.clear()
            yield [line.removesuffix(b"\r") for line in ended]
        begun += rest
        if len(begun) > LINE_BYTES_MAX:
            raise Invalid(f"a line is longer than {LINE_BYTES_MAX} bytes; use --input whole for one large message")
    if begun:
        yield [bytes(begun)]


def whole(descriptor: int) -> Iterator[list[bytes]]:
    parts = []
    size_bytes = 0
    while data := os.read(descriptor, READ_BYTES):
        parts.append(data)
        size_bytes += len(data)
        if size_bytes > LINE_BYTES_MAX:
            raise Invalid(f"the input is larger than {LINE_BYTES_MAX} bytes")
    yield [b"".join(parts)]
