"""The settings: one line each, from which file keys, environment variables, flags and the reference all derive.

To add one, write `name: Annotated[type, Kind(...), "What it does."] = default`. The key in a file is `name`, the
variable `PENSTOCK_NAME`, the flag `--name` with dashes; nothing else has to be told about it.
"""

import functools
import typing
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

import msgspec

from penstock.config.kinds import (
    Address,
    Advertised,
    Choice,
    Count,
    Directory,
    Duration,
    Kind,
    Listen,
    Size,
    Storage,
    StoragePlace,
    Switch,
    Table,
    Text,
)

INT32_MAX = 2**31 - 1


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    # -- Storage
    data: Annotated[str, Directory(), "Directory that holds everything durable. One server at a time."] = (
        "./penstock-data"
    )
    storage: Annotated[
        Storage,
        StoragePlace(),
        "Where topics are kept that do not say so themselves. `file:PATH` names the data directory as well; "
        "`memory:` keeps the whole server in memory, its own bookkeeping included.",
    ] = Storage("disk")
    durability: Annotated[
        Literal["sync", "interval", "os"],
        Choice("sync", "interval", "os"),
        "What an acknowledgement promises by default: `sync` on stable storage, `interval` synced every second, `os` "
        "handed to the operating system.",
    ] = "sync"
    topic_defaults: Annotated[
        Mapping[str, str],
        Table(),
        "Topic settings, under their Kafka names, that new topics begin with. Sources are merged name by name.",
    ] = msgspec.field(default_factory=dict)
    auto_create_topics: Annotated[bool, Switch(), "Create a topic when a client first uses it."] = True
    default_partitions: Annotated[int, Count(1, 10_000), "Partitions of a topic that does not ask for a number."] = 1
    max_topics: Annotated[int, Count(1, INT32_MAX), "Topics the server will keep."] = 20_000
    max_partitions: Annotated[int, Count(1, INT32_MAX), "Partitions the server will keep, over all topics."] = 100_000
    producer_id_expiration_ms: Annotated[
        int, Duration(1), "An idempotent producer that was silent for so long is forgotten."
    ] = 86_400_000

    # -- Kafka door
    kafka: Annotated[Listen | None, Address(), "Address of the Kafka door."] = Listen("127.0.0.1", 9092)
    kafka_advertised: Annotated[
        Listen | None,
        Advertised(),
        "Address that Kafka clients are told to connect to. Without it, the address the door really listens on.",
    ] = None
    max_request_bytes: Annotated[int, Size(1024, INT32_MAX), "Largest request a client may send."] = 100 << 20
    max_pending_bytes: Annotated[
        int,
        Size(1 << 20, 1 << 40),
        "Bytes of requests received and not yet answered, over all connections; above it nobody is read from.",
    ] = 256 << 20
    connection_idle_ms: Annotated[int, Duration(1000), "A connection that is silent for so long is closed."] = 600_000
    max_connections: Annotated[int, Count(1, INT32_MAX), "Connections open at once, over all doors."] = 10_000

    # -- Native doors
    line: Annotated[
        Listen | None, Address(), "Address of the line door: text commands, and the protocol of the Python client."
    ] = Listen("127.0.0.1", 7070)
    udp: Annotated[Listen | None, Address(), "Address of the UDP door: one datagram, one message."] = Listen(
        "127.0.0.1", 7071
    )
    http: Annotated[Listen | None, Address(), "Address of the HTTP door: REST, server-sent events, WebSocket."] = (
        Listen("127.0.0.1", 1337)
    )
    max_body_bytes: Annotated[int, Size(1024, INT32_MAX), "Largest body of an HTTP request."] = 16 << 20
    max_views: Annotated[int, Count(1, INT32_MAX), "Queue views the server will keep, over all topics."] = 10_000

    # -- Groups
    group_initial_rebalance_delay_ms: Annotated[
        int, Duration(0), "How long the first member of an empty group waits for others to join it."
    ] = 100
    group_min_session_timeout_ms: Annotated[int, Duration(1), "Shortest session time-out a member may ask for."] = 6_000
    group_max_session_timeout_ms: Annotated[int, Duration(1), "Longest session time-out a member may ask for."] = (
        1_800_000
    )
    group_max_size: Annotated[int, Count(1, INT32_MAX), "Members of one group."] = 10_000
    offsets_retention_minutes: Annotated[
        int, Duration(1, unit="minutes"), "Committed offsets of a group without members are kept for so long."
    ] = 10_080

    # -- Transactions
    transaction_max_timeout_ms: Annotated[
        int, Duration(1), "Longest time-out a transaction may ask for; it is aborted when it takes longer than its own."
    ] = 900_000
    transactional_id_expiration_ms: Annotated[
        int, Duration(1), "A transactional id that nobody used for so long is forgotten."
    ] = 604_800_000
    max_transactional_ids: Annotated[int, Count(1, INT32_MAX), "Transactional ids the server will keep."] = 100_000
    step_max_timeout_ms: Annotated[
        int, Duration(1), "Longest silence a named step may ask for; what it has open is aborted after its own."
    ] = 86_400_000
    step_expiration_ms: Annotated[
        int, Duration(60_000), "A name of steps under which nothing was committed for so long is forgotten."
    ] = 2_592_000_000
    max_steps: Annotated[
        int,
        Count(1, INT32_MAX),
        "Names of steps the server will keep: 2 KB of memory each, and 300 bytes more for each commit it remembers.",
    ] = 100_000

    # -- Server
    node_id: Annotated[int, Count(0, INT32_MAX), "Number of this server, as clients see it."] = 0
    cluster_id: Annotated[
        str | None,
        Text("1 to 64 letters, digits, '_' or '-'", r"[A-Za-z0-9_-]{1,64}"),
        "Identity of this cluster, as clients see it. Without it, one is made once and kept with the data.",
    ] = None
    drain_timeout_s: Annotated[
        int, Duration(0, unit="s"), "How long a stopping server lets requests under way come to an end."
    ] = 10
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Choice("debug", "info", "warning", "error"),
        "The least important log lines to write.",
    ] = "info"
    log_format: Annotated[
        Literal["console", "json"], Choice("console", "json"), "Log lines for people or for machines."
    ] = "console"


# The heading in the reference under which a setting and those after it stand.
SECTIONS = {
    "data": "Storage",
    "kafka": "Kafka door",
    "line": "Native doors",
    "group_initial_rebalance_delay_ms": "Groups",
    "transaction_max_timeout_ms": "Transactions",
    "node_id": "Server",
}


class Setting(NamedTuple):
    """One row of the table: everything that is known of a setting."""

    name: str
    kind: Kind
    doc: str
    default: object

    @property
    def variable(self) -> str:
        return "PENSTOCK_" + self.name.upper()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


@functools.cache
def table() -> Mapping[str, Setting]:
    """Every setting by its name, in the order in which they are declared."""
    hints = typing.get_type_hints(Settings, include_extras=True)
    defaults = Settings()
    rows = {}
    for name in Settings.__struct_fields__:
        kind, doc = hints[name].__metadata__
        rows[name] = Setting(name, kind, doc, getattr(defaults, name))
    return rows
