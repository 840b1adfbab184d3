"""What stands on the results page, section by section: which numbers, beside whom, and what a reader must know."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from bench.plan import HTTP_BATCH, SPARK_PARTITIONS

Summary = Callable[[list[float]], float]

# (load, number, what a reader calls it, unit)
Row = tuple[str, str, str, str]


@dataclass(frozen=True)
class Section:
    title: str
    rows: list[Row]
    base: str | None = "kafka"  # whom the ratios compare with
    peers: tuple[str, ...] = ()  # the columns; all that were measured if none are named
    note: str = ""
    summary: Summary = statistics.median


THROUGHPUT: list[Row] = [
    (f"throughput {size} B x {partitions}", f"{verb}_msg_s", f"{verb} {size} B, {partitions} part.", "msg/s")
    for verb in ("produce", "consume")
    for size in (100, 1000)
    for partitions in (1, 12)
]
SESSION_NOTE = (
    "Of Kafka's time after `kill -9`, up to 9 s is its controller waiting for the dead broker's session to expire "
    "(`broker.session.timeout.ms`; set to 3 s, one trial of such a restart without data took 5 s instead of 12), not "
    "work on the logs."
)
KAFKA_SECTIONS = [
    Section(
        "Throughput",
        THROUGHPUT,
        note="Client busy is the share of one core's time that the load generator itself used, at most over the "
        "peers: near 1 and above, the client is what was measured, and a higher number needs a bigger machine.",
    ),
    Section(
        "Throughput, best repetition",
        THROUGHPUT,
        summary=max,
        note="On a virtual machine the first touch of a memory page may cost the host more than the write that needs "
        "it: a run that happens to get such pages for its page cache takes up to twice as long, whoever is measured. "
        "The best repetition of each peer is the one with the least of that.",
    ),
    Section(
        "Latency, one message at a time, acks=all",
        [("latency", "p50_ms", "p50", "ms"), ("latency", "p99_ms", "p99", "ms")],
    ),
    Section(
        "Transactions, one after the other",
        [
            ("transactions", "txn_s", "100 messages of 100 B to 4 partitions", "transactions/s"),
            ("transactions", "p50_ms", "from begin to committed, p50", "ms"),
        ],
        note="By librdkafka. Penstock answers a commit when everyone can see it; Kafka when it is decided, and shows "
        "it a moment later.",
    ),
    Section(
        "Start and memory",
        [
            ("cold start", "ready_s", "cold start to first metadata reply", "s"),
            ("cold start", "rss_mb", "resident after the start", "MB"),
            ("resident after traffic", "rss_mb", "resident after all of the above", "MB"),
            ("memory", "tenth_peak_mb", "peak while a tenth of the log below is written and read", "MB"),
            ("memory", "whole_peak_mb", "peak while the whole log is written and read", "MB"),
            ("memory", "restart_after_kill_s", "start after `kill -9` with that log, to ready", "s"),
            ("memory", "restart_after_kill_answered_s", "the same, until the log tells its end", "s"),
        ],
        note=SESSION_NOTE,
    ),
    Section(
        "Server's processor time",
        [
            (
                f"throughput {size} B x {partitions}",
                f"{verb}_server_cpu_s_per_gb",
                f"{verb} {size} B, {partitions} part.",
                "s/GB",
            )
            for verb in ("produce", "consume")
            for size in (100, 1000)
            for partitions in (1, 12)
        ],
        note="Seconds of all processes of the server, user and system, per GB of message values.",
    ),
    Section(
        "Many topics",
        [
            ("many topics", "create_s", "create them all", "s"),
            ("many topics", "first_messages_s", "one message to every partition", "s"),
            ("many topics", "restart_s", "restart after a clean stop, to ready", "s"),
            ("many topics", "restart_answered_s", "the same, until every partition told its end", "s"),
            ("many topics", "restart_after_kill_s", "restart after `kill -9`, to ready", "s"),
            ("many topics", "restart_after_kill_answered_s", "the same, until every partition told its end", "s"),
            ("many topics", "idle_cpu_percent", "idle", "% of a core"),
            ("many topics", "rss_mb", "resident", "MB"),
        ],
        note="Every partition holds one message, which is checked after each restart. " + SESSION_NOTE,
    ),
]

QUEUE: list[Row] = [
    *(
        (f"queue {size} B", f"{verb}_{number}", f"{words} {size} B{what}", unit)
        for verb, words in (("publish", "publish"), ("work", "lease and ack"))
        for size in (100, 1000)
        for number, what, unit in (
            ("msg_s", "", "msg/s"),
            ("server_us", ", server's time", "µs a message"),
            ("client_us", ", client's time", "µs a message"),
        )
    ),
    ("queue both 100 B", "both_msg_s", "publish, lease and ack 100 B at once", "msg/s"),
    ("queue both 100 B", "both_server_us", "the same, server's time", "µs a message"),
    ("queue both 100 B", "both_client_us", "the same, both clients' time", "µs a message"),
    ("queue latency", "p50_ms", "publish one at a time, p50", "ms"),
    ("queue latency", "p99_ms", "publish one at a time, p99", "ms"),
]
QUEUE_SECTIONS = [
    Section(
        "Queues, acknowledged when the disk has it",
        QUEUE,
        base="redis-always",
        peers=("redis-always", "nats-synced", "penstock-sync"),
        note="Through each server's usual Python client, one process for the server and one for each client, in "
        "batches of 500: redis-py with hiredis (pipelines; XREADGROUP and XACK), nats-py (publish_async within its own "
        "bound; fetches of a durable pull consumer, each message acked), Penstock's own (publish_many; batches of a "
        "queue subscription acked at once). Debian's NATS 2.9 has no setting that syncs before it acknowledges; "
        "`nats-synced` keeps its files in a directory that is written synchronously (`chattr +S`), which is what "
        "`sync_interval: always` of later versions does, message by message.",
    ),
    Section(
        "Queues, acknowledged when the operating system has it",
        QUEUE,
        base="redis-everysec",
        peers=("redis-everysec", "redis", "nats", "penstock-os"),
        note="`redis` is Redis at its defaults: snapshots only, so what came since the last one is lost with the "
        "process. `redis-everysec` has the append-only file, synced once a second; `nats` syncs every 2 minutes.",
    ),
    Section(
        "A backlog that waits in a queue",
        [
            ("queue backlog", "rss_bytes_per_message", "resident, for each waiting message of 100 B", "bytes"),
            ("queue backlog", "rss_mb", "resident, all", "MB"),
            ("queue backlog", "restart_s", "restart after a clean stop, to ready", "s"),
            ("queue backlog", "first_delivery_s", "the same, until a consumer has its first batch", "s"),
            ("queue backlog", "restarted_rss_mb", "resident after that", "MB"),
        ],
        base="redis-everysec",
        peers=("redis-everysec", "nats", "penstock-sync"),
        note="Redis keeps its streams in memory; the other two keep them on disk.",
    ),
    Section(
        "The other doors",
        [
            ("door http batch", "records_s", f"HTTP publish, batches of {HTTP_BATCH:,} records of 100 B", "records/s"),
            ("door http batch", "server_us", "the same, server's time", "µs a record"),
            ("door http single", "records_s", "HTTP publish, one record of 100 B a request", "requests/s"),
            ("door http single", "server_us", "the same, server's time", "µs a request"),
            ("door line", "records_s", "text `PUB` of 100 B, pipelined", "msg/s"),
            ("door line", "server_us", "the same, server's time", "µs a message"),
        ],
        base=None,
        note="Requests are made beforehand and sent over bare connections, so that no client's cost is measured.",
    ),
    Section(
        "Server-sent events to many subscribers",
        [
            ("fan-out", "subscribers", "subscribers, each to get every event", "count"),
            ("fan-out", "missing", "events that a subscriber missed, in all of the below", "count"),
            ("fan-out", "alone_p50_ms", "publish 20 a second with no subscriber, p50", "ms"),
            ("fan-out", "alone_p99_ms", "publish 20 a second with no subscriber, p99", "ms"),
            ("fan-out", "steady_p50_ms", "the same with all subscribers, p50", "ms"),
            ("fan-out", "steady_p99_ms", "the same with all subscribers, p99", "ms"),
            ("fan-out", "steady_events_s", "delivered meanwhile", "events/s"),
            ("fan-out", "steady_server_us", "server's time", "µs an event"),
            ("fan-out", "alone_msg_s", "publish one after the other with no subscriber", "msg/s"),
            ("fan-out", "fast_msg_s", "the same with all subscribers", "msg/s"),
            ("fan-out", "fast_events_s", "delivered meanwhile and after", "events/s"),
            ("fan-out", "burst_events_s", "delivered of 100 published at once", "events/s"),
            ("fan-out", "rss_kb_per_subscriber", "resident, for each subscriber", "kB"),
        ],
        base=None,
        note="All subscribers are bare connections of one process, which shares two cores with the server and the "
        "producer. Without subscribers an event costs the producer a request; with them, it costs the server a write "
        "to each.",
    ),
]
SPARK_SECTIONS = [
    Section(
        "Spark",
        [
            (f"spark {way} {size} B x {partitions}", "rows_s", f"{words} {size} B, {partitions} part.", "rows/s")
            for way, words in (("batch", "batch read"), ("stream", "stream, available now"), ("sink", "batch write"))
            for size in (100, 1000)
            for partitions in SPARK_PARTITIONS
        ],
        base="connector-kafka",
        peers=("connector-kafka", "connector-penstock", "penstock", "penstock-direct"),
        note="Spark's own Kafka connector on Apache Kafka and on Penstock, and Penstock's source and sink, through the "
        "broker and (batch reads only) straight from the log's files. Keys and values, to Spark's `noop` sink. A "
        "stream's time is that of the whole query, start and end included. The connector's sink is at-least-once, "
        "Penstock's exactly-once. Servers acknowledge when the operating system has the data, and share the two cores "
        "with Spark.",
    ),
    Section(
        "A topic of JSON into a table, exactly once",
        [
            (f"spark backfill {name}", number, f"{name}, {words}", unit)
            for name in ("parquet", "delta", "iceberg")
            for number, words, unit in (
                ("rows_s", "rows", "rows/s"),
                ("batches", "micro-batches", "count"),
                ("peak_mb", "most memory of Spark's processes, the driver and its Java included", "MB"),
            )
        ],
        base=None,
        peers=("penstock",),
        note="The whole job: the schema is inferred, values are decoded, files are written, synced and published. "
        "Afterwards the table's rows are counted.",
    ),
]
SECTIONS = KAFKA_SECTIONS + QUEUE_SECTIONS + SPARK_SECTIONS
