"""What several commands share: options, the client they speak through, and how queues and filters are named."""

from typing import Annotated

import typer

from penstock.client.admin import DEFAULT_VIEW, Match
from penstock.client.client import DEFAULT_SERVER
from penstock.client.sync import SyncClient

__all__ = ["DEFAULT_SERVER", "DEFAULT_TIMEOUT_S", "Json", "Server", "TimeoutS", "View", "Yes", "connect"]

DEFAULT_TIMEOUT_S = 10.0

Server = Annotated[
    str,
    typer.Option(
        "--server", "-s", envvar="PENSTOCK_SERVER", metavar="HOST:PORT", help="Address of the server's line door."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
TimeoutS = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long to wait for answers.")]
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


def pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    """`name=value` texts as a table; anything else is a usage error."""
    table = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{text!r} is not of the form NAME=VALUE", param_hint=option)
        table[name] = value
    return table


def view_of(text: str) -> tuple[str, str]:
    """`orders/mail` is the queue `mail` of `orders`; `orders` is its queue `queue`."""
    topic, _, name = text.partition("/")
    if not topic:
        raise typer.BadParameter(f"{text!r} names no topic", param_hint="TOPIC[/QUEUE]")
    return topic, name or DEFAULT_VIEW


def matches_of(keys: list[str] | None, patterns: list[str] | None, headers: dict[str, str]) -> list[Match]:
    """A filter that takes what any of the keys and patterns takes, of what has these headers."""
    asked: Match = {"headers": headers} if headers else {}
    matches: list[Match] = [{**asked, "key": key} for key in keys or []]
    matches += [{**asked, "pattern": pattern} for pattern in patterns or []]
    return matches or ([asked] if asked else [])
