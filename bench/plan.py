"""What is measured, how often and how long, in the quick and in the full run."""

from dataclasses import dataclass

SIZES_BYTES = (100, 1000)
PARTITIONS = (1, 12)
SPARK_PARTITIONS = (1, 8)
HTTP_BATCH = 1000


@dataclass(frozen=True)
class Plan:
    name: str
    repetitions: int
    warm_up_bytes: int  # through each peer before anything counts: a JVM needs to see the code a while
    throughput_bytes: dict[int, int]  # by message size
    latency_count: int
    transactions: int
    cold_starts: int
    memory_bytes: int
    topics: int
    partitions_per_topic: int
    settle_s: float  # between a start and the idle window
    idle_window_s: float
    queue_repetitions: int
    queue_s: float  # of publishing; taking what was published takes as long as it takes
    queue_latency_s: float
    queue_both_count: int
    doors_s: float
    subscribers: int
    fan_out_s: float
    backlog_count: int
    spark_rows: dict[int, int]  # by message size
    spark_repetitions: int
    backfill_rows: int


QUICK = Plan(
    "quick",
    repetitions=3,
    warm_up_bytes=200_000_000,
    throughput_bytes={100: 100_000_000, 1000: 200_000_000},
    latency_count=1000,
    transactions=100,
    cold_starts=3,
    memory_bytes=500_000_000,
    topics=200,
    partitions_per_topic=10,
    settle_s=5.0,
    idle_window_s=5.0,
    queue_repetitions=1,
    queue_s=0.5,
    queue_latency_s=0.5,
    queue_both_count=10_000,
    doors_s=0.5,
    subscribers=1000,
    fan_out_s=2.0,
    backlog_count=100_000,
    spark_rows={100: 1_000_000, 1000: 200_000},
    spark_repetitions=2,
    backfill_rows=1_000_000,
)
FULL = Plan(
    "full",
    repetitions=5,
    warm_up_bytes=1_000_000_000,
    throughput_bytes={100: 300_000_000, 1000: 1_000_000_000},
    latency_count=5000,
    transactions=300,
    cold_starts=5,
    memory_bytes=1_000_000_000,
    topics=1000,
    partitions_per_topic=10,
    settle_s=20.0,
    idle_window_s=20.0,
    queue_repetitions=3,
    queue_s=1.0,
    queue_latency_s=1.0,
    queue_both_count=20_000,
    doors_s=1.0,
    subscribers=1000,
    fan_out_s=3.0,
    backlog_count=1_000_000,
    spark_rows={100: 4_000_000, 1000: 800_000},
    spark_repetitions=3,
    backfill_rows=10_000_000,
)
