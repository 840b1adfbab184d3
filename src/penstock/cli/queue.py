"""`penstock queue …`: list, show, create, alter, peek, pause, resume, purge, redrive, delete."""

import os
import sys
from typing import Annotated, Any

import msgspec
import typer

from penstock.cli import options, render
from penstock.cli.options import View, connect, matches_of, pairs, view_of
from penstock.cli.terminal import confirm, done, guarded, print_json, print_table, working
from penstock.client.admin import Queue

app = typer.Typer(
    no_args_is_help=True, help="Create, list, look into, pause, purge, redrive and delete queues on topics."
)

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A setting, such as max_attempts=5 or lease_ms=60000. Repeatable."
    ),
]
Keys = Annotated[list[str] | None, typer.Option("--key", "-k", help="Take only this key. Repeatable.")]
Patterns = Annotated[
    list[str] | None,
    typer.Option("--pattern", help="Take only keys such as eu.*.order or eu.#: * is a word, # any number. Repeatable."),
]
HeaderMatches = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="Take only what has this header. Repeatable."),
]


def settings_of(texts: list[str] | None) -> dict[str, Any]:
    """Numbers, true, false and null are what they look like; everything else is text."""
    values: dict[str, Any] = {}
    for name, text in pairs(texts, "--set").items():
        try:
            value = msgspec.json.decode(text)
        except msgspec.DecodeError:
            value = text
        values[name.replace("-", "_")] = value if isinstance(value, (int, float, bool, type(None))) else text
    return values


def _told(queue: Queue) -> dict[str, object]:
    return {
        "topic": queue.topic,
        "queue": queue.name,
        "paused": queue.paused,
        "counts": queue.counts,
        "settings": queue.settings,
        "sources": [{"topic": topic, "matches": matches} for topic, matches in queue.sources],
    }


@app.command("list")
@guarded
def list_(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Only those of this topic.")] = None,
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """List queues with their messages in numbers."""
    with connect(server, timeout_s) as client, working("Asking for queues"):
        queues = sorted(client.queues(topic), key=lambda queue: (queue.topic, queue.name))
    if as_json:
        print_json([_told(queue) for queue in queues])
    elif queues:
        print_table(
            ["Queue", "#Pending", "#Processing", "#Processed", "#Dead", "#Consumers", "Paused"],
            [
                [
                    f"{queue.topic}/{queue.name}",
                    queue.pending,
                    queue.processing,
                    queue.processed,
                    queue.counts.get("dead", 0),
                    queue.counts.get("consumers", 0),
                    queue.paused,
                ]
                for queue in queues
            ],
        )
    else:
        done("there are no queues yet; create one with 'penstock queue create TOPIC[/QUEUE]'")


@app.command("show")
@guarded
def show(
    view: View,
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Show a queue's settings, what it reads, and its messages in numbers."""
    with connect(server, timeout_s) as client, working("Asking for the queue"):
        queue = client.queue(*view_of(view))
    if as_json:
        print_json(_told(queue))
        return
    done(f"{queue.topic}/{queue.name}" + ("   paused" if queue.paused else ""))
    print_table(["Messages", "#Count"], [[name, count] for name, count in queue.counts.items()])
    if queue.settings:
        print_table(["Setting", "Value"], [[name, _plain(value)] for name, value in queue.settings.items()])
    print_table(["Reads", "Matching"], [[topic, _filter(matches)] for topic, matches in queue.sources])


def _plain(value: object) -> object:
    return value if isinstance(value, (bool, str, type(None))) else str(value)


def _filter(matches: object) -> str:
    return msgspec.json.encode(matches).decode() if matches else "everything"


@app.command("create")
@guarded
def create(
    view: View,
    settings: Set = None,
    keys: Keys = None,
    patterns: Patterns = None,
    headers: HeaderMatches = None,
    latest: Annotated[bool, typer.Option("--latest", help="Begin with what comes from now on.")] = False,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="A queue that exists is fine.")] = False,
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Create a queue on a topic, which is made on first use. It begins with the earliest message that is kept."""
    topic, name = view_of(view)
    values = settings_of(settings)
    matches = matches_of(keys, patterns, pairs(headers, "--header"))
    with connect(server, timeout_s) as client:
        queue = client.create_queue(
            topic,
            name,
            matches=matches,
            start="latest" if latest else "earliest",
            or_existing=if_not_exists,
            **values,
        )
    if as_json:
        print_json(_told(queue))
    else:
        done(f"created {topic}/{name}")


@app.command("alter")
@guarded
def alter(
    view: View,
    settings: Set = None,
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Change a queue's settings."""
    topic, name = view_of(view)
    values = settings_of(settings)
    if not values:
        raise typer.BadParameter("say what to change", param_hint="--set")
    with connect(server, timeout_s) as client:
        queue = client.configure_queue(topic, name, **values)
    if as_json:
        print_json(_told(queue))
    else:
        done(f"altered {topic}/{name}")


@app.command("peek")
@guarded
def peek(
    view: View,
    count: Annotated[int, typer.Option("--max", "-n", min=1, help="How many messages.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    server: options.Server = options.DEFAULT_SERVER,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Print the next messages of a queue, and leave them there."""
    with connect(server, timeout_s) as client:
        messages = client.peek_queue(*view_of(view), limit=count)
    renderer = render.json_line if as_json else render.pretty(sys.stdout.isatty() and "NO_COLOR" not in os.environ)
    for message in messages:
        sys.stdout.buffer.write(renderer(message))


@app.command("pause")
@guarded
def pause(
    view: View,
    server: options.Server = options.DEFAULT_SERVER,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Hand out nothing until the queue is resumed."""
    topic, name = view_of(view)
    with connect(server, timeout_s) as client:
        client.pause_queue(topic, name)
    done(f"paused {topic}/{name}")


@app.command("resume")
@guarded
def resume(
    view: View,
    server: options.Server = options.DEFAULT_SERVER,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Hand out messages again."""
    topic, name = view_of(view)
    with connect(server, timeout_s) as client:
        client.resume_queue(topic, name)
    done(f"resumed {topic}/{name}")


@app.command("purge")
@guarded
def purge(
    view: View,
    yes: options.Yes = False,
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Settle all messages that nobody holds. The topic keeps them; the queue does not hand them out any more."""
    topic, name = view_of(view)
    with connect(server, timeout_s) as client:
        waiting = client.queue(topic, name).pending
        confirm(f"Settle all {waiting:,} messages that wait in {topic}/{name}?", yes)
        purged = client.purge_queue(topic, name)
    if as_json:
        print_json({"topic": topic, "queue": name, "purged": purged})
    else:
        done(f"purged {purged:,} message{'s'[: purged != 1]} of {topic}/{name}")


@app.command("redrive")
@guarded
def redrive(
    view: View,
    count: Annotated[int, typer.Option("--max", "-n", min=1, help="At most so many.")] = 10_000,
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Bring a queue's dead letters back to it."""
    topic, name = view_of(view)
    with connect(server, timeout_s) as client:
        driven = client.redrive_queue(topic, name, count)
    if as_json:
        print_json({"topic": topic, "queue": name, "redriven": driven})
    else:
        done(f"{driven:,} dead letter{'s'[: driven != 1]} back in {topic}/{name}")


@app.command("delete")
@guarded
def delete(
    view: View,
    yes: options.Yes = False,
    server: options.Server = options.DEFAULT_SERVER,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Delete a queue. The topic and its messages stay."""
    topic, name = view_of(view)
    with connect(server, timeout_s) as client:
        waiting = client.queue(topic, name).pending
        confirm(f"Delete {topic}/{name}, where {waiting:,} messages wait?", yes)
        client.delete_queue(topic, name)
    done(f"deleted {topic}/{name}")
