"""What is measured, how often and how long, in the quick and in the full run."""

from dataclasses import dataclass

SIZES_BYTES = (100, 1000)
PARTITIONS = (1, 12)


@dataclass(frozen=True)
class Plan:
    name: str
    repetitions: int
    warm_up_bytes: int  # through each peer before anything counts: a JVM needs to see the code a while
    throughput_bytes: dict[int, int]  # by message size
    latency_count: int
    cold_starts: int
    memory_bytes: int
    topics: int
    partitions_per_topic: int
    settle_s: float  # between a start and the idle window
    idle_window_s: float


QUICK = Plan("quick", 3, 200_000_000, {100: 100_000_000, 1000: 200_000_000}, 1000, 3, 500_000_000, 200, 10, 5.0, 5.0)
FULL = Plan(
    "full", 5, 1_000_000_000, {100: 300_000_000, 1000: 1_000_000_000}, 5000, 5, 1_000_000_000, 1000, 10, 20.0, 20.0
)
