"""`penstock router …`: list, create, bind, unbind, delete."""

from enum import StrEnum
from typing import Annotated

import typer

from penstock.cli import options
from penstock.cli.options import connect, pairs
from penstock.cli.terminal import confirm, done, guarded, print_json, print_table, working
from penstock.client.admin import Router

app = typer.Typer(no_args_is_help=True, help="Route what is published to a topic on to other topics and queues.")

Name = Annotated[str, typer.Argument(metavar="ROUTER", help="The router, named as the topic that is published to.")]
To = Annotated[str, typer.Argument(metavar="TOPIC[/QUEUE]", help="Where it goes: a topic, or a queue of one.")]
Key = Annotated[
    str | None,
    typer.Option("--key", "-k", help="Of a direct router the key; of a topic router a pattern such as eu.# or *.new."),
]
Headers = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="Of a headers router. Repeatable."),
]
AnyHeader = Annotated[bool, typer.Option("--any", help="One of the headers is enough.")]


class Kind(StrEnum):
    direct = "direct"
    fanout = "fanout"
    topic = "topic"
    headers = "headers"


def _told(router: Router) -> dict[str, object]:
    return {
        "router": router.name,
        "kind": router.kind,
        "bindings": [binding._asdict() for binding in router.bindings],
    }


@app.command("list")
@guarded
def list_(
    server: options.Server = options.DEFAULT_SERVER,
    as_json: options.Json = False,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """List routers and their bindings."""
    with connect(server, timeout_s) as client, working("Asking for routers"):
        routers = sorted(client.routers(), key=lambda router: router.name)
    if as_json:
        print_json([_told(router) for router in routers])
    elif routers:
        rows: list[list[object]] = []
        for router in routers:
            rows += [
                [router.name, router.kind, one.to, one.key, _headers(one.headers, one.any_header)]
                for one in router.bindings
            ]
            if not router.bindings:
                rows.append([router.name, router.kind, None, None, None])
        print_table(["Router", "Kind", "To", "Key", "Headers"], rows)
    else:
        done("there are no routers yet; create one with 'penstock router create TOPIC'")


def _headers(headers: object, any_header: bool) -> str | None:
    assert isinstance(headers, dict)
    return (" or " if any_header else ", ").join(f"{name}={value}" for name, value in headers.items()) or None


@app.command("create")
@guarded
def create(
    name: Name,
    kind: Annotated[Kind, typer.Option("--kind", help="What decides where a message goes.")] = Kind.direct,
    server: options.Server = options.DEFAULT_SERVER,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Create a router, and the topic of its name."""
    with connect(server, timeout_s) as client:
        client.create_router(name, kind.value)
    done(f"created {name}")


@app.command("bind")
@guarded
def bind(
    name: Name,
    to: To,
    key: Key = None,
    headers: Headers = None,
    any_header: AnyHeader = False,
    server: options.Server = options.DEFAULT_SERVER,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Send on what matches. The target is made on first use."""
    with connect(server, timeout_s) as client:
        client.bind(name, to, key=key, headers=pairs(headers, "--header"), any_header=any_header)
    done(f"bound {to} to {name}")


@app.command("unbind")
@guarded
def unbind(
    name: Name,
    to: To,
    key: Key = None,
    headers: Headers = None,
    any_header: AnyHeader = False,
    server: options.Server = options.DEFAULT_SERVER,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Take a binding away."""
    with connect(server, timeout_s) as client:
        client.unbind(name, to, key=key, headers=pairs(headers, "--header"), any_header=any_header)
    done(f"unbound {to} from {name}")


@app.command("delete")
@guarded
def delete(
    name: Name,
    yes: options.Yes = False,
    server: options.Server = options.DEFAULT_SERVER,
    timeout_s: options.TimeoutS = options.DEFAULT_TIMEOUT_S,
) -> None:
    """Delete a router and its bindings. Topics and queues stay."""
    with connect(server, timeout_s) as client:
        confirm(f"Delete the router {name} and its bindings?", yes)
        client.delete_router(name)
    done(f"deleted {name}")
