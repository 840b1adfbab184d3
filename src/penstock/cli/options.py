"""Options that several commands share."""

from typing import Annotated

import typer

from penstock.client.kafka.cluster import Cluster

DEFAULT_SERVER = "127.0.0.1:9092"

Server = Annotated[
    str,
    typer.Option(
        "--server", "-s", envvar="PENSTOCK_SERVER", metavar="HOST:PORT", help="Address of the server's Kafka door."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
TimeoutS = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long to wait for answers.")]

DEFAULT_TIMEOUT_S = 10.0


def connect(server: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> Cluster:
    return Cluster(server, timeout_s=timeout_s, retry_s=1.5 * timeout_s)


def pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    """`name=value` texts as a table; anything else is a usage error."""
    table = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{text!r} is not of the form NAME=VALUE", param_hint=option)
        table[name] = value
    return table
