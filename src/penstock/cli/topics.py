"""`penstock topic …`: create, list, describe, alter, delete."""

from typing import Annotated

import typer

from penstock.cli import options
from penstock.cli.options import connect, pairs
from penstock.cli.terminal import confirm, counting, done, fail, guarded, print_json, print_table, working
from penstock.client.kafka import admin
from penstock.client.kafka.cluster import TopicInfo
from penstock.client.kafka.errors import Missing, Refused
from penstock.client.kafka.offsets import bounds

TOPIC_EXISTS = 36
UNKNOWN_TOPIC = 3

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
    replication: Annotated[
        int | None, typer.Option(min=1, help="Copies of each partition.", show_default="the server's")
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
    with connect(server, timeout_s) as cluster, counting("topics", shown=len(names) > 1) as progress:
        for name in progress.track(names, description="Creating"):
            try:
                admin.create_topic(
                    cluster, name, partitions or admin.SERVER_DEFAULT, replication or admin.SERVER_DEFAULT, values
                )
                created = True
            except Refused as error:
                if error.code != TOPIC_EXISTS or not if_not_exists:
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
    with connect(server, timeout_s) as cluster, working("Asking for topics"):
        topics = [topic for topic in admin.list_topics(cluster) if internal or not topic.internal]
        limits = bounds(cluster, [place for topic in topics for place in _led(topic)])
    rows = []
    for topic in topics:
        records = sum(limits[place][1] - limits[place][0] for place in _led(topic))
        rows.append({"topic": topic.name, "partitions": len(topic.partitions), "records": records})
    if as_json:
        print_json(rows)
    elif rows:
        print_table(["Topic", "#Partitions", "#Records"], [list(row.values()) for row in rows])
    else:
        done("there are no topics yet; create one with 'penstock topic create NAME'")


def _led(topic: TopicInfo) -> list[tuple[str, int]]:
    return [(topic.name, index) for index, partition in topic.partitions.items() if partition.leader >= 0]


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
    with connect(server, timeout_s) as cluster, working("Asking for the topic"):
        topic = cluster.topic(name)
        settings = [setting for setting in admin.topic_settings(cluster, name) if everything or setting.is_set]
        limits = bounds(cluster, _led(topic))
    partitions = []
    for index, partition in topic.partitions.items():
        start, end = limits.get((name, index), (None, None))
        partitions.append(
            {
                "partition": index,
                "leader": partition.leader,
                "replicas": partition.replicas,
                "in_sync": partition.in_sync,
                "start_offset": start,
                "end_offset": end,
            }
        )
    if as_json:
        values = {setting.name: {"value": setting.value, "source": setting.source} for setting in settings}
        identity = str(topic.topic_id) if topic.topic_id else None
        print_json({"topic": name, "topic_id": identity, "partitions": partitions, "settings": values})
        return
    done(f"{name}   id {topic.topic_id or 'unknown'}   {len(partitions)} partition{'s'[: len(partitions) != 1]}")
    rows = [[_plain(value) for value in partition.values()] for partition in partitions]
    print_table(["#Partition", "#Leader", "Replicas", "In sync", "#Start", "#End"], rows)
    if settings:
        print_table(["Setting", "Value", "Set by"], [[one.name, one.value, one.source] for one in settings])
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
    with connect(server, timeout_s) as cluster:
        cluster.topic(name)
        if values or unset:
            admin.alter_topic(cluster, name, values, unset or [])
        if partitions is not None:
            admin.add_partitions(cluster, name, partitions)
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
    with connect(server, timeout_s) as cluster:
        known = cluster.retry(lambda: cluster.metadata(names))
        missing = [name for name in names if name not in known]
        if missing and not if_exists:
            raise Missing(f"there is no topic {missing[0]!r}; nothing was deleted; see 'penstock topic list'")
        present = [name for name in names if name in known]
        if present:
            confirm(f"Delete {', '.join(present)} and all records in them?", yes)
        deleted = []
        with counting("topics", shown=len(present) > 1) as progress:
            for name in progress.track(present, description="Deleting"):
                try:
                    admin.delete_topic(cluster, name)
                except Refused as error:
                    if error.code != UNKNOWN_TOPIC or not if_exists:
                        fail(str(error))
                    continue
                deleted.append(name)
    if as_json:
        print_json({"deleted": deleted, "missing": missing})
        return
    for name in deleted:
        done(f"deleted {name}")
