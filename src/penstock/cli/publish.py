"""`penstock publish`: values, lines, JSON or whole files into a topic, with all that a queue may be told about them."""

import os
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Literal

import typer

from penstock.cli import options
from penstock.cli.input import Input, Maker, Tally, lines, whole
from penstock.cli.options import connect, pairs
from penstock.cli.terminal import CommandFailed, counting, done, guarded, note, print_json, told
from penstock.client.sync import SyncClient
from penstock.model.errors import PenstockError


class Compression(StrEnum):
    none = "none"
    gzip = "gzip"
    snappy = "snappy"
    lz4 = "lz4"
    zstd = "zstd"


class Acks(StrEnum):
    none = "none"
    leader = "leader"
    all = "all"


@guarded
def publish(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")],
    values: Annotated[
        list[str] | None, typer.Argument(metavar="VALUE", help="Messages, instead of standard input.")
    ] = None,
    file: Annotated[str | None, typer.Option("--file", "-F", help="Read messages from this file.")] = None,
    form: Annotated[
        Input,
        typer.Option(
            "--input",
            help="What the input is: a message per line, a JSON object per line (as 'penstock subscribe --json' writes "
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
    delay_s: Annotated[
        float | None, typer.Option("--delay", metavar="SECONDS", min=0, help="Queues hand it out after so long.")
    ] = None,
    ttl_s: Annotated[
        float | None, typer.Option("--ttl", metavar="SECONDS", min=0, help="To queues it is dead after so long.")
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", min=0, max=9, help="Queues with priorities hand out higher ones first.")
    ] = None,
    acks: Annotated[Acks, typer.Option("--acks", help="What to wait for.")] = Acks.all,
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
    """Publish messages to a topic.

    They are the VALUEs, or come from standard input, line by line, unless told otherwise. The command is done when the
    server has acknowledged all of them. A message that is repeated because an answer was lost is not stored twice.
    """
    if values and file:
        raise typer.BadParameter("choose one of VALUE and --file")
    if key is not None and key_separator is not None:
        raise typer.BadParameter("choose one of --key and --key-separator")
    if key_separator == "":
        raise typer.BadParameter("it is empty", param_hint="--key-separator")
    maker = Maker(
        form,
        key,
        key_separator,
        pairs(headers, "--header"),
        partition,
        empty_is_null,
        delay_s,
        ttl_s,
        priority,
    )
    tally = Tally()
    began = time.monotonic()
    with connect(server, timeout_s, compression.value) as client:
        sender = _Sender(client, topic, maker, tally, acks)
        try:
            if not create:
                client.topic(topic)
            if values:
                sender.send([value.encode() for value in values])
            else:
                _send_input(sender, file)
        except PenstockError as error:
            raise CommandFailed(f"{told(error)} ({tally.records:,} messages were acknowledged before that)") from None
    if as_json:
        print_json({"topic": topic, "records": tally.records, "partitions": tally.as_list()})
        return
    took_s = time.monotonic() - began
    places = ", ".join(
        f"partition {one['partition']} to offset {one['last_offset']}"
        for one in tally.as_list()
        if one["last_offset"] >= 0
    )
    done(f"{tally.records:,} message{'s'[: tally.records != 1]} in {took_s:.2f} s" + (f": {places}" if places else ""))


class _Sender:
    def __init__(self, client: SyncClient, topic: str, maker: Maker, tally: Tally, acks: Acks) -> None:
        self.maker = maker
        self.tally = tally
        self._client = client
        self._topic = topic
        self._acks: Literal["none", "leader", "all"] = acks.value

    def send(self, pieces: Sequence[bytes]) -> None:
        for partition, offset in self._client.publish_many(self._topic, self.maker.make(pieces), acks=self._acks):
            self.tally.add(partition, offset)


def _send_input(sender: _Sender, file: str | None) -> None:
    try:
        descriptor = os.open(file, os.O_RDONLY) if file else sys.stdin.fileno()
    except OSError as error:
        raise CommandFailed(f"cannot read {file}: {(error.strerror or str(error)).lower()}") from None
    interactive = os.isatty(descriptor)
    if interactive:
        note("one message per line; Ctrl-D ends")
    total_bytes = os.fstat(descriptor).st_size if file else None
    try:
        with counting("messages", in_bytes=bool(total_bytes), shown=not interactive) as progress:
            task = progress.add_task("Publishing", total=total_bytes)
            read_bytes = 0
            for some in whole(descriptor) if sender.maker.form is Input.whole else lines(descriptor):
                sender.send(some)
                read_bytes += sum(map(len, some)) + len(some)
                progress.update(task, completed=read_bytes if total_bytes else sender.tally.records)
    except KeyboardInterrupt:
        note("interrupted: what follows was not sent")
    finally:
        if file:
            os.close(descriptor)
