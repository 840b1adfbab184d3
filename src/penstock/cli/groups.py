"""`penstock group …`: list, describe, reset, delete."""

from collections.abc import Sequence
from typing import Annotated

import typer

from penstock.cli import options
from penstock.cli.options import connect
from penstock.cli.positions import FORMS, Position, parse_position, resolve
from penstock.cli.terminal import confirm, counting, done, guarded, note, print_json, print_table, working
from penstock.client.kafka import groups
from penstock.client.kafka.cluster import Cluster, TopicPartition
from penstock.client.kafka.errors import Invalid, Missing
from penstock.client.kafka.offsets import bounds

app = typer.Typer(no_args_is_help=True, help="List, describe, reset and delete consumer groups.")

Group = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")]
Offsets = dict[TopicPartition, int]


@app.command("list")
@guarded
def list_(
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """List groups and their state."""
    with connect(server, timeout_s) as cluster, working("Asking for groups"):
        found = groups.list_groups(cluster)
    if as_json:
        print_json([{"group": one.group_id, "state": one.state, "protocol_type": one.protocol_type} for one in found])
    elif found:
        print_table(["Group", "State", "Kind"], [[one.group_id, one.state, one.protocol_type or None] for one in found])
    else:
        done("there are no groups yet; 'penstock consume TOPIC --group NAME' makes one")


@app.command("describe")
@guarded
def describe(
    group: Group,
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Show a group's members, what each of them reads, and how far behind they are."""
    with connect(server, timeout_s) as cluster, working("Asking for the group"):
        info = groups.describe_group(cluster, group)
        committed = groups.committed_offsets(cluster, group)
        readers = {
            (topic, index): member
            for member in info.members
            for topic, indexes in (member.assignment or {}).items()
            for index in indexes
        }
        ends = {place: end for place, (_, end) in _bounds(cluster, sorted({*committed, *readers})).items()}
    offsets = []
    for place in sorted({*committed, *readers}):
        at, end = committed.get(place), ends.get(place)
        reader = readers.get(place)
        offsets.append(
            {
                "topic": place[0],
                "partition": place[1],
                "committed": at,
                "end": end,
                "lag": max(end - at, 0) if at is not None and end is not None else None,
                "member": reader.member_id if reader else None,
            }
        )
    if as_json:
        print_json(
            {
                "group": group,
                "state": info.state,
                "protocol": info.protocol,
                "members": info.members,
                "offsets": offsets,
            }
        )
        return
    lags = [row["lag"] for row in offsets if isinstance(row["lag"], int)]
    done(f"{group}   {info.state}   {info.protocol or 'no protocol'}   total lag {sum(lags):,}")
    if info.members:
        rows = [[one.member_id, one.client_id, one.host, _assigned(one)] for one in info.members]
        print_table(["Member", "Client", "Host", "Reads"], rows)
    else:
        done("the group has no members at the moment")
    if offsets:
        columns = ["Topic", "#Partition", "#Committed", "#End", "#Lag", "Member"]
        print_table(columns, [list(row.values()) for row in offsets])


def _assigned(member: groups.Member) -> str | None:
    if member.assignment is None:
        return None
    return "; ".join(f"{topic} {', '.join(map(str, sorted(own)))}" for topic, own in sorted(member.assignment.items()))


def _bounds(cluster: Cluster, places: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
    """Bounds of those partitions that still exist: a group may remember topics that are gone."""
    known = cluster.retry(lambda: cluster.metadata({topic for topic, _ in places})) if places else {}
    return bounds(cluster, [place for place in places if place[0] in known and place[1] in known[place[0]].partitions])


@app.command("reset")
@guarded
def reset(
    group: Group,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", help="Topic to reset. Repeatable.", show_default="all that the group has read"),
    ] = None,
    partitions: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition. Repeatable.")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="POSITION", help=f"Where to go on: {FORMS}.")] = None,
    shift: Annotated[
        int | None, typer.Option("--shift", metavar="N", help="Move by so many records; back, if negative.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    yes: options.Yes = False,
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Set where a group goes on reading. It must have no members at that time."""
    if (to is None) == (shift is None):
        raise typer.BadParameter("say where to go on, with either --to or --shift")
    position = _position(to) if to is not None else None
    with connect(server, timeout_s) as cluster:
        groups.require_no_members(cluster, group)
        before = groups.committed_offsets(cluster, group)
        places = _chosen(cluster, group, before, topics, partitions)
        after = resolve(cluster, position, places) if position else _shifted(cluster, before, places, shift or 0)
        changes = [
            {"topic": topic, "partition": index, "before": before.get((topic, index)), "after": after[topic, index]}
            for topic, index in places
        ]
        if not as_json:
            print_table(["Topic", "#Partition", "#Before", "#After"], [list(change.values()) for change in changes])
        if not dry_run:
            confirm(f"Set {len(changes)} offset{'s'[: len(changes) != 1]} of {group}?", yes)
            groups.commit_offsets(cluster, group, after)
    if as_json:
        print_json({"group": group, "applied": not dry_run, "offsets": changes})
    elif dry_run:
        note("nothing was changed: this was a dry run")
    else:
        done(f"{group} goes on from there")


def _position(text: str) -> Position:
    try:
        return parse_position(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--to") from None


def _chosen(
    cluster: Cluster, group: str, before: Offsets, topics: list[str] | None, partitions: list[int] | None
) -> list[TopicPartition]:
    if topics:
        places = [(topic, index) for topic in topics for index in cluster.topic(topic).partitions]
        beyond = set(partitions or []) - {index for _, index in places}
        if beyond:
            raise Missing(f"there is no partition {min(beyond)} in {', '.join(topics)}")
    else:
        places = sorted(before)
    places = [place for place in places if not partitions or place[1] in partitions]
    if not places:
        raise Invalid(f"group {group!r} has not read anything yet; say which topic to set with --topic")
    return places


def _shifted(cluster: Cluster, before: Offsets, places: list[TopicPartition], shift: int) -> Offsets:
    unread = [place for place in places if place not in before]
    if unread:
        topic, index = unread[0]
        raise Invalid(f"{topic}-{index} has no committed offset to move from; use --to")
    limits = bounds(cluster, places)
    return {place: min(max(before[place] + shift, limits[place][0]), limits[place][1]) for place in places}


@app.command("delete")
@guarded
def delete(
    names: Annotated[list[str], typer.Argument(metavar="GROUP", help="Names of groups.")],
    yes: options.Yes = False,
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Delete groups and their committed offsets. They must have no members."""
    with connect(server, timeout_s) as cluster:
        for name in names:
            groups.require_no_members(cluster, name)
        confirm(f"Delete {', '.join(names)} and their committed offsets?", yes)
        with counting("groups", shown=len(names) > 1) as progress:
            for name in progress.track(names, description="Deleting"):
                groups.delete_group(cluster, name)
    if as_json:
        print_json({"deleted": names})
        return
    for name in names:
        done(f"deleted {name}")
