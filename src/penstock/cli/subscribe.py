"""`penstock subscribe`: messages on standard output, as a log, from a queue, or as they are published."""

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

from penstock.cli import native, options, render
from penstock.cli.options import pairs
from penstock.cli.positions import FORMS, Kind, Position, parse_position
from penstock.cli.terminal import guarded, note
from penstock.client.admin import DEFAULT_VIEW, Match
from penstock.client.log import LogSubscription, Start
from penstock.client.message import Message
from penstock.client.push import PubSubSubscription
from penstock.client.sync import SyncClient
from penstock.client.sync_subscription import SyncSubscription

AT_ONCE = 500
LOOK_S = 0.3  # how long nothing must come before we look whether that is the end
FILTERED_LOOK_S = 1.5  # and before we take it for the end, where a filter hides how far we are


class View(StrEnum):
    log = "log"
    queue = "queue"
    pubsub = "pubsub"


@guarded
def subscribe(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")],
    view: Annotated[
        View,
        typer.Option(
            "--view",
            "-v",
            help="A log is read at one's own pace, a queue is shared and its messages are acknowledged, pub/sub is "
            "what is published from now on.",
        ),
    ] = View.log,
    name: Annotated[str, typer.Option("--name", help="Name of the queue; made on first use.")] = DEFAULT_VIEW,
    start: Annotated[
        str, typer.Option("--from", "-f", metavar="POSITION", help=f"Of a log, where to begin: {FORMS}.")
    ] = "beginning",
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Of a log: go on where this group stopped, and commit what was printed."),
    ] = None,
    partitions: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Of a log: only this partition. Repeatable.")
    ] = None,
    count: Annotated[int | None, typer.Option("--max", "-n", min=0, help="Stop after so many messages.")] = None,
    ack: Annotated[
        bool, typer.Option("--ack/--no-ack", help="Of a queue: acknowledge what was printed, or give it back.")
    ] = True,
    keys: Annotated[list[str] | None, typer.Option("--key", "-k", help="Only this key. Repeatable.")] = None,
    patterns: Annotated[
        list[str] | None,
        typer.Option("--pattern", help="Only keys such as eu.*.order or eu.#: * is a word, # any number. Repeatable."),
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Only with this header. Repeatable."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--exit-at-end", " /-e", help="Wait for more, or stop when there is nothing left.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    as_raw: Annotated[bool, typer.Option("--raw", help="Values only, byte for byte.")] = False,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", help="With --raw: print the key and this before the value.")
    ] = None,
    delimiter: Annotated[
        str, typer.Option("--delimiter", help="With --raw: print this after each value.", show_default="a new line")
    ] = "\n",
    server: native.Server = native.DEFAULT_SERVER,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Print the messages of a topic, and then whatever comes, until Ctrl-C.

    A queue's messages are acknowledged after they were printed, so that none is lost when the reader of a pipe leaves.
    """
    if as_json and as_raw:
        raise typer.BadParameter("choose one of --json and --raw")
    if view is not View.log and (group or partitions or start != "beginning"):
        raise typer.BadParameter("--from, --group and --partition are for a log: leave them out, or use --view log")
    if view is View.pubsub and not follow:
        raise typer.BadParameter("what is published from now on has no end: leave out --exit-at-end")
    try:
        position = parse_position(start)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--from") from None
    renderer: render.Renderer
    if as_json:
        renderer = render.json_line
    elif as_raw:
        renderer = render.raw(key_separator.encode() if key_separator is not None else None, delimiter.encode())
    else:
        renderer = render.pretty(colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ)
    matches = native.matches_of(keys, patterns, pairs(headers, "--header"))
    printer = _Printer(renderer, count)
    with native.connect(server, timeout_s) as client:
        try:
            if printer.is_full:
                return
            if view is View.queue:
                _queue(client, topic, name, printer, matches, ack, follow)
            elif view is View.pubsub:
                with client.subscribe(topic, "pubsub", matches=matches) as subscription:
                    _print_all(subscription, printer)
            else:
                _log(client, topic, printer, matches, position, group, partitions, follow)
        except KeyboardInterrupt:
            return  # the usual way to end it


class _Printer:
    def __init__(self, renderer: render.Renderer, count: int | None) -> None:
        self._renderer = renderer
        self.left = count

    @property
    def is_full(self) -> bool:
        return self.left is not None and self.left <= 0

    @property
    def room(self) -> int:
        return AT_ONCE if self.left is None else min(AT_ONCE, self.left)

    def print(self, messages: Sequence[Message]) -> None:
        output = sys.stdout.buffer
        for message in messages:
            output.write(self._renderer(native.received(message)))
        output.flush()
        if self.left is not None:
            self.left -= len(messages)


def _print_all(subscription: SyncSubscription[PubSubSubscription], printer: _Printer) -> None:
    missed = 0
    while not printer.is_full:
        printer.print(subscription.take(printer.room))
        if subscription.gap > missed:
            note(f"{subscription.gap - missed:,} messages were missed: this reader was too slow")
            missed = subscription.gap


def _log(
    client: SyncClient,
    topic: str,
    printer: _Printer,
    matches: Sequence[Match],
    position: Position,
    group: str | None,
    partitions: Sequence[int] | None,
    follow: bool,
) -> None:
    chosen = list(partitions or range(client.topic(topic).partitions))
    bounds = {partition: client.offsets(topic, partition) for partition in chosen}
    ends = {partition: bound.end for partition, bound in bounds.items()}
    begin = _start(position, {partition: (bound.start, bound.end) for partition, bound in bounds.items()})
    with client.subscribe(
        topic, start=begin, partitions=chosen, group=group, auto_commit=False, matches=matches
    ) as subscription:
        while not printer.is_full and (follow or not _at_end(subscription.inner, ends)):
            patience_s = FILTERED_LOOK_S if matches else LOOK_S
            batch = subscription.take(printer.room, None if follow else patience_s)
            printer.print(batch)
            if batch and group is not None:
                subscription.commit()
            if not batch and not follow and matches:
                return  # what the filter holds back does not come, however long we wait


def _start(position: Position, bounds: dict[int, tuple[int, int]]) -> Start:
    match position.kind:
        case Kind.BEGINNING:
            return "earliest"
        case Kind.END:
            return "latest"
        case Kind.TIME:
            return datetime.fromtimestamp(position.number / 1000, UTC)
        case Kind.LAST:
            return {partition: max(end - position.number, start) for partition, (start, end) in bounds.items()}
        case Kind.OFFSET:
            return {one: min(max(position.number, start), end) for one, (start, end) in bounds.items()}


def _at_end(subscription: LogSubscription, ends: dict[int, int]) -> bool:
    return all(subscription.read_to(partition) >= end for partition, end in ends.items())


def _queue(
    client: SyncClient, topic: str, name: str, printer: _Printer, matches: Sequence[Match], ack: bool, follow: bool
) -> None:
    held: list[Message] = []
    with client.subscribe(topic, "queue", name=name, credit=printer.room, matches=matches) as subscription:
        while not printer.is_full:
            batch = subscription.take(printer.room, None if follow else LOOK_S)
            if not batch and not follow and _nothing_waits(client, topic, name, len(held)):
                break
            printer.print(batch)
            if ack:
                subscription.ack(batch)
            elif batch:
                held += batch
                subscription.add_credit(len(batch))  # what is held back must not stop what follows
        if held:
            subscription.release(held)


def _nothing_waits(client: SyncClient, topic: str, name: str, held: int) -> bool:
    queue = client.queue(topic, name)
    coming = queue.pending - queue.counts.get("delayed", 0)
    if queue.counts.get("consumers", 0) <= 1:
        coming += queue.processing - held  # leased to us, and still on its way
    return coming <= 0 or queue.paused
