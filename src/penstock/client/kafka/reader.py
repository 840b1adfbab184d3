"""Reading partitions from given positions on. A position moves only when its records have been handed out."""

import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from penstock.client.kafka.cluster import Cluster, TopicPartition
from penstock.client.kafka.errors import Disconnected, Refused, TimedOut
from penstock.client.kafka.offsets import EARLIEST, NO_REPLICA, READ_UNCOMMITTED, ask_leaders, list_offsets
from penstock.model.batch import check_batch, decode_batch
from penstock.model.errors import CorruptBatch
from penstock.model.record import Record
from penstock.wire.kafka.api import ApiKey
from penstock.wire.kafka.messages import Struct

FETCH_BYTES = 8 << 20
FETCH_PARTITION_BYTES = 1 << 20
OFFSET_OUT_OF_RANGE = 1
BATCH_LENGTH_END = 12  # base offset int64 | length int32: a batch's size is its length and these
RETRY_PAUSE_S = 0.1


class Received(NamedTuple):
    topic: str
    partition: int
    record: Record


class Reader:
    def __init__(self, cluster: Cluster, positions: Mapping[TopicPartition, int]) -> None:
        self._cluster = cluster
        self.positions = dict(positions)
        self.ends: dict[TopicPartition, int] = {}  # high watermarks, as far as fetches have told them
        self.lost: dict[TopicPartition, tuple[int, int]] = {}  # positions that were gone: (wanted, went on from)
        self._failing_since: float | None = None

    def poll(self, max_wait_ms: int = 500) -> list[Received]:
        """The next records, or none if there were none for `max_wait_ms`. Positions move past all of them."""
        if not self.positions:
            time.sleep(max_wait_ms / 1000)
            return []
        try:
            received = list(self._fetch(max_wait_ms))
        except (Disconnected, TimedOut, Refused) as error:
            self._pause(error)
            return []
        self._failing_since = None
        return received

    def _pause(self, error: Disconnected | TimedOut | Refused) -> None:
        """A server that restarts is waited for as long as the cluster allows."""
        if isinstance(error, Refused) and not error.retriable:
            raise error
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        if now - self._failing_since > self._cluster.retry_s:
            raise error
        self._cluster.forget()
        time.sleep(RETRY_PAUSE_S)

    def _fetch(self, max_wait_ms: int) -> Iterator[Received]:
        answers = ask_leaders(
            self._cluster,
            ApiKey.FETCH,
            self.positions,
            lambda led: self._request(led, max_wait_ms),
            timeout_s=self._cluster.timeout_s + max_wait_ms / 1000,
        )
        for answer in answers:
            if getattr(answer, "error_code", 0):
                raise Refused(answer.error_code, "fetch")
            for topic in answer.responses:
                for partition in topic.partitions:
                    yield from self._take(topic.topic, partition)

    def _request(self, led: dict[str, list[int]], max_wait_ms: int) -> Struct:
        return Struct(
            replica_id=NO_REPLICA,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=READ_UNCOMMITTED,
            topics=[
                Struct(
                    topic=topic,
                    partitions=[
                        Struct(
                            partition=index,
                            fetch_offset=self.positions[topic, index],
                            partition_max_bytes=FETCH_PARTITION_BYTES,
                        )
                        for index in indexes
                    ],
                )
                for topic, indexes in led.items()
            ],
        )

    def _take(self, topic: str, partition: Struct) -> Iterator[Received]:
        place = (topic, partition.partition_index)
        if partition.error_code == OFFSET_OUT_OF_RANGE:
            self._go_on_from_start(place)
            return
        if partition.error_code:
            raise Refused(partition.error_code, f"fetch of {topic}-{partition.partition_index}")
        self.ends[place] = partition.high_watermark
        records = bytes(partition.records or b"")
        start = 0
        while start < len(records):
            size = BATCH_LENGTH_END + int.from_bytes(records[start + 8 : start + BATCH_LENGTH_END], "big")
            if len(records) - start < max(size, BATCH_LENGTH_END):
                break  # a server may cut the last batch short: it comes whole with the next fetch
            try:
                header = check_batch(records, start)
                opened = [] if header.is_control else decode_batch(records, start)
            except CorruptBatch as error:
                raise Disconnected(f"{topic}-{partition.partition_index} holds damaged data: {error}") from None
            for record in opened:
                if record.offset >= self.positions[place]:
                    yield Received(topic, partition.partition_index, record)
            self.positions[place] = max(self.positions[place], header.end_offset)
            start += header.size_bytes

    def _go_on_from_start(self, place: TopicPartition) -> None:
        """Retention was quicker than we were, or the topic was made anew: what is gone is reported, not hidden."""
        wanted = self.positions[place]
        self.positions[place] = list_offsets(self._cluster, {place: EARLIEST})[place]
        self.lost[place] = (wanted, self.positions[place])
