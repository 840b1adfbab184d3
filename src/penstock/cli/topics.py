"""`penstock topic …`: create, list, describe, alter, delete."""

from typing import Annotated

import typer

from penstock.cli import options
from penstock.cli.options import connect, pairs
from penstock.cli.terminal import CommandFailed, confirm, counting, done, guarded, print_json, print_table, working
from penstock.client.sync import SyncClient
from penstock.model.errors import TopicExists, UnknownTopic

app = typer.Typer(no_args_is_help=True, help="Create, list, describe, alter and delete topics.")

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
Names = Annotated[list[str], typer.Argument(metavar="TOPIC", help="Names of topics.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A topic setting, such as retention.ms=86400000. Repeatable."),
]


@app.command("create")
@guarded
def create(
    names: Names,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Number of partitions.", show_default="the server's")
    ] = None,
    settings: Set = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="A topic that exists already is fine.")
    ] = False,
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Create topics."""
    values = pairs(settings, "--set")
    results = []
    with connect(server, timeout_s) as client, counting("topics", shown=len(names) > 1) as progress:
        for name in progress.track(names, description="Creating"):
            try:
                client.create_topic(name, partitions, values)
                created = True
            except TopicExists:
                if not if_not_exists:
                    raise
                created = False
            results.append({"topic": name, "created": created})
    if as_json:
        print_json(results)
        return
    for result in results:
        done(f"created {result['topic']}" if result["created"] else f"{result['topic']} exists already")


@app.command("list")
@guarded
def list_(
    internal: Annotated[bool, typer.Option("--internal", "-i", help="Show the server's own topics as well.")] = False,
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """List topics with their partitions and how many offsets they span (after compaction, more than records)."""
    with connect(server, timeout_s) as client, working("Asking for topics"):
        names = sorted(topic.name for topic in client.topics(internal=internal))
        topics = client.describe_topics(names, settings=False)
    rows = []
    for topic in topics:
        records = sum(partition.end - partition.start for partition in topic.partitions)
        rows.append({"topic": topic.name, "partitions": len(topic.partitions), "records": records})
    if as_json:
        print_json(rows)
    elif rows:
        print_table(["Topic", "#Partitions", "#Records"], [list(row.values()) for row in rows])
    else:
        done("there are no topics yet; create one with 'penstock topic create NAME'")


@app.command("describe")
@guarded
def describe(
    name: Name,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Show settings at their defaults as well.")] = False,
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Show a topic's partitions and settings."""
    with connect(server, timeout_s) as client, working("Asking for the topic"):
        topic = client.describe_topic(name)
    settings = [setting for setting in topic.settings if everything or setting.source == "topic"]
    partitions: list[dict[str, object]] = [
        {
            "partition": one.partition,
            "leader": one.leader,
            "replicas": one.replicas,
            "in_sync": one.in_sync,
            "start_offset": one.start,
            "end_offset": one.end,
        }
        for one in topic.partitions
    ]
    if as_json:
        values = {setting.name: {"value": setting.value, "source": setting.source} for setting in settings}
        print_json({"topic": name, "topic_id": topic.topic_id, "partitions": partitions, "settings": values})
        return
    done(f"{name}   id {topic.topic_id}   {len(partitions)} partition{'s'[: len(partitions) != 1]}")
    rows = [[_plain(value) for value in partition.values()] for partition in partitions]
    print_table(["#Partition", "#Leader", "Replicas", "In sync", "#Start", "#End"], rows)
    if settings:
        print_table(["Setting", "Value", "Set by"], settings)
    elif not everything:
        done("all settings are at their defaults; --all shows them")


def _plain(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


@app.command("alter")
@guarded
def alter(
    name: Name,
    settings: Set = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="NAME", help="Return a setting to its default. Repeatable.")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Grow to so many partitions.")
    ] = None,
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Change a topic's settings or the number of its partitions."""
    values = pairs(settings, "--set")
    if not values and not unset and partitions is None:
        raise typer.BadParameter("say what to change: --set, --unset or --partitions")
    with connect(server, timeout_s) as client:
        client.alter_topic(name, {**values, **dict.fromkeys(unset or [])}, partitions)
    if as_json:
        print_json({"topic": name, "set": values, "unset": unset or [], "partitions": partitions})
    else:
        done(f"altered {name}")


@app.command("delete")
@guarded
def delete(
    names: Names,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="A topic that does not exist is fine.")] = False,
    yes: options.Yes = False,
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Delete topics and everything in them, for good."""
    with connect(server, timeout_s) as client:
        missing = [name for name in names if not _exists(client, name)]
        if missing and not if_exists:
            raise CommandFailed(f"there is no topic {missing[0]!r}; nothing was deleted; see 'penstock topic list'")
        present = [name for name in names if name not in missing]
        if present:
            confirm(f"Delete {', '.join(present)} and all records in them?", yes)
        deleted = []
        with counting("topics", shown=len(present) > 1) as progress:
            for name in progress.track(present, description="Deleting"):
                try:
                    client.delete_topic(name)
                except UnknownTopic:
                    if not if_exists:
                        raise
                    continue
                deleted.append(name)
    if as_json:
        print_json({"deleted": deleted, "missing": missing})
        return
    for name in deleted:
        done(f"deleted {name}")


def _exists(client: SyncClient, name: str) -> bool:
    try:
        client.topic(name)
    except UnknownTopic:
        return False
    return True
