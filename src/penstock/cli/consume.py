"""`penstock consume`: records on standard output, alone or as a member of a group."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from penstock.cli import options, render
from penstock.cli.options import connect
from penstock.cli.positions import FORMS, Position, parse_position, resolve
from penstock.cli.terminal import guarded, note
from penstock.client.kafka.cluster import Cluster, TopicPartition
from penstock.client.kafka.errors import Missing
from penstock.client.kafka.groups import committed_offsets
from penstock.client.kafka.member import GroupMember
from penstock.client.kafka.offsets import LATEST, list_offsets
from penstock.client.kafka.reader import Reader, Received

POLL_MS = 500
# Fetches in a row that bring nothing where offsets remain: compaction or transaction markers left a hole at the end.
EMPTY_POLLS_AT_END = 2


@guarded
def consume(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Names of topics.")],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            "-f",
            metavar="POSITION",
            help=f"Where to begin: {FORMS}. With --group: only where the group has read nothing yet.",
        ),
    ] = "beginning",
    partitions: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition. Repeatable.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            help="Take part in this consumer group: share the partitions with its other members (range or "
            "round-robin), go on where it stopped, and commit what was printed.",
        ),
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=0, help="Stop after so many records.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--exit-at-end", " /-e", help="Wait for new records, or stop at the present end.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    as_raw: Annotated[bool, typer.Option("--raw", help="Values only, byte for byte.")] = False,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-k", help="With --raw: print the key and this before the value.")
    ] = None,
    delimiter: Annotated[
        str, typer.Option("--delimiter", help="With --raw: print this after each value.", show_default="a new line")
    ] = "\n",
    server: options.Server = options.DEFAULT_SERVER,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Print the records of topics over Kafka's protocol, from any server that speaks it.

    From the beginning, unless told otherwise, and then whatever comes, until Ctrl-C. The same key always stands in the
    same partition; order holds within a partition, not between them.
    """
    if as_json and as_raw:
        raise typer.BadParameter("choose one of --json and --raw")
    if group is not None and partitions:
        raise typer.BadParameter("a group shares out the partitions itself: leave out --partition or --group")
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
    with connect(server, timeout_s) as cluster:
        printer = _Printer(renderer, count)
        try:
            if group is None:
                _alone(cluster, printer, _chosen(cluster, topics, partitions), position, follow)
            else:
                _in_group(cluster, printer, group, topics, position, follow)
        except KeyboardInterrupt:
            return  # the usual way to end it


class _Printer:
    """Counts what it prints, and remembers up to where it has printed each partition."""

    def __init__(self, renderer: render.Renderer, count: int | None) -> None:
        self._renderer = renderer
        self._left = count
        self.printed: dict[TopicPartition, int] = {}

    @property
    def is_full(self) -> bool:
        return self._left is not None and self._left <= 0

    def print(self, received: Sequence[Received]) -> None:
        if self._left is not None:
            received = received[: self._left]
            self._left -= len(received)
        output = sys.stdout.buffer
        for one in received:
            output.write(self._renderer(one))
            self.printed[one.topic, one.partition] = one.record.offset + 1
        if received:
            output.flush()


class _End:
    """Where each partition ended when we began: past that, we are done."""

    def __init__(self, cluster: Cluster, partitions: Sequence[TopicPartition]) -> None:
        self._ends = list_offsets(cluster, dict.fromkeys(partitions, LATEST)) if partitions else {}
        self._empty_polls = 0

    def reached(self, reader: Reader, got_something: bool) -> bool:
        left = [place for place, end in self._ends.items() if reader.positions.get(place, end) < end]
        self._empty_polls = 0 if got_something else self._empty_polls + 1
        passed = all(reader.ends.get(place, -1) >= self._ends[place] for place in left)
        return not left or (passed and self._empty_polls >= EMPTY_POLLS_AT_END)


def _chosen(cluster: Cluster, topics: Sequence[str], partitions: Sequence[int] | None) -> list[TopicPartition]:
    places = []
    for topic in topics:
        known = cluster.topic(topic).partitions
        for index in partitions or known:
            if index not in known:
                raise Missing(f"topic {topic!r} has no partition {index}; it has 0 to {len(known) - 1}")
            places.append((topic, index))
    return places


def _alone(
    cluster: Cluster, printer: _Printer, partitions: Sequence[TopicPartition], position: Position, follow: bool
) -> None:
    reader = Reader(cluster, resolve(cluster, position, partitions))
    end = None if follow else _End(cluster, partitions)
    got: Sequence[Received] = ()
    while not printer.is_full and not (end and end.reached(reader, bool(got))):
        got = reader.poll(POLL_MS)
        _tell_losses(reader)
        printer.print(got)


def _in_group(
    cluster: Cluster, printer: _Printer, group: str, topics: Sequence[str], position: Position, follow: bool
) -> None:
    """Every record is committed after it was printed and before the next fetch, so a rebalance finds all committed."""
    for topic in topics:
        cluster.topic(topic)
    member = GroupMember(cluster, group, topics)
    reader = Reader(cluster, {})
    end = None
    got: Sequence[Received] = ()
    try:
        while not printer.is_full:
            if member.keep_up():
                reader = Reader(cluster, _resume(cluster, group, member.partitions, position))
                end = None if follow else _End(cluster, member.partitions)
                got = ()
            if end and end.reached(reader, bool(got)):
                return
            got = reader.poll(POLL_MS)
            _tell_losses(reader)
            printer.print(got)
            if got:
                member.commit(printer.printed if printer.is_full else reader.positions)
                printer.printed.clear()
    finally:
        member.leave()


def _resume(
    cluster: Cluster, group: str, partitions: Sequence[TopicPartition], position: Position
) -> dict[TopicPartition, int]:
    if not partitions:
        return {}
    offsets = committed_offsets(cluster, group, partitions)
    unread = [place for place in partitions if place not in offsets]
    return offsets | (resolve(cluster, position, unread) if unread else {})


def _tell_losses(reader: Reader) -> None:
    for (topic, partition), (wanted, start) in reader.lost.items():
        note(f"{topic}-{partition}: offset {wanted} is not there any more; going on from {start}")
    reader.lost.clear()
