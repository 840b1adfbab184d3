"""`penstock subscribe`: messages on standard output, as a log, from a queue, or as they are published."""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from enum import StrEnum
from typing import Annotated

import typer

from penstock.cli import options, render
from penstock.cli.feeds import AnyFeed, LogFeed, PubSubFeed, QueueFeed
from penstock.cli.options import connect, matches_of, pairs
from penstock.cli.positions import FORMS, position_of
from penstock.cli.terminal import guarded
from penstock.client.admin import DEFAULT_VIEW
from penstock.client.message import Message
from penstock.client.sync import SyncClient

AT_ONCE = 500


class View(StrEnum):
    log = "log"
    queue = "queue"
    pubsub = "pubsub"


@guarded
def subscribe(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Names of topics.")],
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
    server: options.Server = options.DEFAULT_SERVER,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Print the messages of topics, and then whatever comes, until Ctrl-C.

    A queue's messages are acknowledged after they were printed, so that none is lost when the reader of a pipe leaves.
    """
    if as_json and as_raw:
        raise typer.BadParameter("choose one of --json and --raw")
    if view is not View.log and (group or partitions or start != "beginning"):
        raise typer.BadParameter("--from, --group and --partition are for a log: leave them out, or use --view log")
    if view is View.pubsub and not follow:
        raise typer.BadParameter("what is published from now on has no end: leave out --exit-at-end")
    position = position_of(start, "--from")
    matches = matches_of(keys, patterns, pairs(headers, "--header"))
    printer = _Printer(_renderer(as_json, as_raw, key_separator, delimiter), count)

    def feed(client: SyncClient, topic: str) -> AnyFeed:
        if view is View.queue:
            return QueueFeed(client, topic, matches, name, printer.room, ack)
        if view is View.pubsub:
            return PubSubFeed(client, topic, matches)
        return LogFeed(client, topic, matches, position, group, partitions)

    with connect(server, timeout_s) as client:
        try:
            if not printer.is_full:
                _print(client, topics, feed, printer, follow)
        except KeyboardInterrupt:
            return  # the usual way to end it


def _renderer(as_json: bool, as_raw: bool, key_separator: str | None, delimiter: str) -> render.Renderer:
    if as_json:
        return render.json_line
    if as_raw:
        return render.raw(key_separator.encode() if key_separator is not None else None, delimiter.encode())
    return render.pretty(colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ)


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
            output.write(self._renderer(message))
        output.flush()
        if self.left is not None:
            self.left -= len(messages)


def _print(
    client: SyncClient,
    topics: Sequence[str],
    make: Callable[[SyncClient, str], AnyFeed],
    printer: _Printer,
    follow: bool,
) -> None:
    with ExitStack() as stack:
        feeds = []
        for topic in dict.fromkeys(topics):
            feeds.append(make(client, topic))
            stack.callback(feeds[-1].close)
        idle = False
        while not printer.is_full:
            if not follow:
                feeds = [feed for feed in feeds if not feed.is_at_end(idle)]
            if not feeds:
                return
            patience_s = None if follow else max(feed.patience_s for feed in feeds)
            taken, batch = client.take_any([feed.subscription for feed in feeds], printer.room, patience_s)
            idle = not batch
            for feed in [feed for feed in feeds if feed.subscription is taken]:
                printer.print(batch)
                feed.printed(batch)
                feeds.remove(feed)
                feeds.append(feed)  # the others come first next time
