"""What the commands share that speak with the line door: its address, its client, and how a queue view is named."""

from typing import Annotated

import typer

from penstock.cli.options import DEFAULT_TIMEOUT_S
from penstock.client.admin import DEFAULT_VIEW, Match
from penstock.client.client import DEFAULT_SERVER
from penstock.client.kafka.reader import Received
from penstock.client.message import Message
from penstock.client.sync import SyncClient

__all__ = ["DEFAULT_SERVER", "Server", "View", "connect", "matches_of", "received", "view_of"]

# Not PENSTOCK_SERVER: that is the Kafka door's address, which other commands use.
Server = Annotated[
    str,
    typer.Option(
        "--server", "-s", envvar="PENSTOCK_NATIVE", metavar="HOST:PORT", help="Address of the server's line door."
    ),
]
View = Annotated[
    str, typer.Argument(metavar="TOPIC[/QUEUE]", help=f"The topic, and the name of its queue ('{DEFAULT_VIEW}').")
]


def connect(server: str, timeout_s: float = DEFAULT_TIMEOUT_S, compression: str = "none") -> SyncClient:
    try:
        return SyncClient(
            server, timeout_s=timeout_s, name="penstock-cli", compression=compression, connect_timeout_s=0
        )
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--server") from None


def view_of(text: str) -> tuple[str, str]:
    """`orders/mail` is the queue `mail` of `orders`; `orders` is its queue `queue`."""
    topic, _, name = text.partition("/")
    if not topic:
        raise typer.BadParameter(f"{text!r} names no topic", param_hint="TOPIC[/QUEUE]")
    return topic, name or DEFAULT_VIEW


def matches_of(
    keys: list[str] | None, patterns: list[str] | None, headers: dict[str, str], any_header: bool = False
) -> list[Match]:
    """A filter that takes what any of the keys and patterns takes, of what has these headers."""
    asked: Match = {}
    if headers:
        asked["headers"] = headers
    if any_header:
        asked["any_header"] = True
    matches: list[Match] = [{**asked, "key": key} for key in keys or []]
    matches += [{**asked, "pattern": pattern} for pattern in patterns or []]
    return matches or ([asked] if asked else [])


def received(message: Message) -> Received:
    """As `render` wants it."""
    return Received(message.topic, message.partition, message.record)
