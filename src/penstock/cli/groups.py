"""`penstock group …`: list, describe, reset, delete."""

from typing import Annotated

import typer

from penstock.cli import options
from penstock.cli.options import connect
from penstock.cli.positions import FORMS, position_of, resolve
from penstock.cli.terminal import (
    CommandFailed,
    confirm,
    counting,
    done,
    guarded,
    note,
    print_json,
    print_table,
    working,
)
from penstock.client.groups import Member, Place
from penstock.client.sync import SyncClient
from penstock.model.errors import UnknownGroup

app = typer.Typer(no_args_is_help=True, help="List, describe, reset and delete consumer groups.")

Group = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")]
Offsets = dict[Place, int]


@app.command("list")
@guarded
def list_(
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """List groups and their state."""
    with connect(server, timeout_s) as client, working("Asking for groups"):
        found = sorted(client.groups())
    if as_json:
        print_json([{"group": one.name, "state": one.state, "protocol_type": one.protocol_type} for one in found])
    elif found:
        print_table(["Group", "State", "Kind"], [[one.name, one.state, one.protocol_type or None] for one in found])
    else:
        done("there are no groups yet; 'penstock subscribe TOPIC --group NAME' makes one")


@app.command("describe")
@guarded
def describe(
    group: Group,
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Show a group's members, what each of them reads, and how far behind they are."""
    with connect(server, timeout_s) as client, working("Asking for the group"):
        info = client.group(group)
    offsets = [
        {
            "topic": one.topic,
            "partition": one.partition,
            "committed": one.committed,
            "end": one.end,
            "lag": one.lag,
            "member": one.member,
        }
        for one in info.offsets
    ]
    if as_json:
        members = [member._asdict() for member in info.members]
        told = {"group": group, "state": info.state, "protocol": info.protocol, "members": members, "offsets": offsets}
        print_json(told)
        return
    lag = sum(one.lag or 0 for one in info.offsets)
    done(f"{group}   {info.state}   {info.protocol or 'no protocol'}   total lag {lag:,}")
    if info.members:
        rows = [[one.member_id, one.client_id, one.host, _assigned(one)] for one in info.members]
        print_table(["Member", "Client", "Host", "Reads"], rows)
    else:
        done("the group has no members at the moment")
    if offsets:
        columns = ["Topic", "#Partition", "#Committed", "#End", "#Lag", "Member"]
        print_table(columns, [list(row.values()) for row in offsets])


def _assigned(member: Member) -> str | None:
    if member.assignment is None:
        return None
    return "; ".join(f"{topic} {', '.join(map(str, sorted(own)))}" for topic, own in sorted(member.assignment.items()))


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
    position = position_of(to, "--to") if to is not None else None
    with connect(server, timeout_s) as client:
        _require_no_members(client, group)
        before = client.committed(group)
        places = _chosen(client, group, before, topics, partitions)
        after = resolve(client, position, places) if position else _shifted(client, before, places, shift or 0)
        changes = [
            {"topic": topic, "partition": index, "before": before.get((topic, index)), "after": after[topic, index]}
            for topic, index in places
        ]
        if not as_json:
            print_table(["Topic", "#Partition", "#Before", "#After"], [list(change.values()) for change in changes])
        if not dry_run:
            confirm(f"Set {len(changes)} offset{'s'[: len(changes) != 1]} of {group}?", yes)
            client.commit(group, after)
    if as_json:
        print_json({"group": group, "applied": not dry_run, "offsets": changes})
    elif dry_run:
        note("nothing was changed: this was a dry run")
    else:
        done(f"{group} goes on from there")


def _require_no_members(client: SyncClient, group: str) -> None:
    """Offsets set from outside would be overwritten by members at once; say so before anything is changed."""
    try:
        count = len(client.group(group).members)
    except UnknownGroup:
        return  # a group that is yet to be may begin where we say
    if count:
        raise CommandFailed(
            f"group {group!r} has {count} member{'s' if count > 1 else ''}; stop the consumers first, "
            f"'penstock group describe {group}' shows them"
        )


def _chosen(
    client: SyncClient, group: str, before: Offsets, topics: list[str] | None, partitions: list[int] | None
) -> list[Place]:
    if topics:
        places = [(topic, index) for topic in topics for index in range(client.topic(topic).partitions)]
        beyond = set(partitions or []) - {index for _, index in places}
        if beyond:
            raise CommandFailed(f"there is no partition {min(beyond)} in {', '.join(topics)}")
    else:
        places = sorted(before)
    places = [place for place in places if not partitions or place[1] in partitions]
    if not places:
        raise CommandFailed(f"group {group!r} has not read anything yet; say which topic to set with --topic")
    return places


def _shifted(client: SyncClient, before: Offsets, places: list[Place], shift: int) -> Offsets:
    unread = [place for place in places if place not in before]
    if unread:
        topic, index = unread[0]
        raise CommandFailed(f"{topic}-{index} has no committed offset to move from; use --to")
    bounds = client.bounds(places)
    return {place: min(max(before[place] + shift, bounds[place].start), bounds[place].end) for place in places}


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
    with connect(server, timeout_s) as client:
        for name in names:
            _require_no_members(client, name)
        confirm(f"Delete {', '.join(names)} and their committed offsets?", yes)
        with counting("groups", shown=len(names) > 1) as progress:
            for name in progress.track(names, description="Deleting"):
                client.delete_group(name)
    if as_json:
        print_json({"deleted": names})
        return
    for name in names:
        done(f"deleted {name}")
