"""Sending records: gathered into batches, acknowledged by all, and stored once even when an answer is lost.

The producer is idempotent: every batch carries a sequence, and a batch that is sent again because its answer did not
come is recognised by the server. At most one batch per partition is under way, so order is kept.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.client.kafka.cluster import Cluster
from penstock.client.kafka.errors import Disconnected, Missing, Refused, TimedOut, Unsupported, check
from penstock.client.kafka.offsets import ask_leaders
from penstock.model.batch import encode_batch
from penstock.model.partitioner import partition_for_key
from penstock.model.record import Headers, Record
from penstock.wire.kafka.api import ApiKey
from penstock.wire.kafka.messages import Struct

COMPRESSIONS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
BATCH_BYTES = 512 << 10  # a batch is closed when its keys and values have reached this
BATCH_RECORDS = 10_000
WAITING_BYTES = 4 << 20  # over all partitions; then they are sent
RECORD_OVERHEAD_BYTES = 16
ACKS_ALL = -1
DUPLICATE_SEQUENCE = 46
RETRY_PAUSE_S = 0.1


@dataclass(slots=True)
class _Lane:
    """One partition: what waits for it, and the sequence its next batch begins with."""

    records: list[Record] = field(default_factory=list)
    size_bytes: int = 0
    sequence: int = 0


class Producer:
    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        compression: str = "none",
        create: bool = True,
        stored: Callable[[int, int, int], None] | None = None,
    ) -> None:
        """`stored(partition, base_offset, count)` is called for every batch that the server has acknowledged."""
        self._cluster = cluster
        self._topic = topic
        self._compression = COMPRESSIONS[compression]
        self._stored = stored or (lambda partition, base_offset, count: None)
        self.partitions = len(cluster.topic(topic, create=create).partitions)
        self._lanes: dict[int, _Lane] = {}
        self._waiting_bytes = 0
        self._keyless_turn = time.time_ns() % self.partitions
        self._producer_id, self._producer_epoch = self._identity()

    def send(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Gather the record; it is on its way when its batch is full or at the next flush()."""
        if partition is None:
            partition = self._keyless_turn if key is None else partition_for_key(key, self.partitions)
        elif not 0 <= partition < self.partitions:
            raise Missing(f"topic {self._topic!r} has no partition {partition}; it has 0 to {self.partitions - 1}")
        lane = self._lanes.setdefault(partition, _Lane())
        size_bytes = RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"")
        size_bytes += sum(len(name) + len(content or b"") for name, content in headers)
        if lane.records and lane.size_bytes + size_bytes > BATCH_BYTES:
            self.flush()
        time_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        lane.records.append(Record(len(lane.records), time_ms, key, value, headers))
        lane.size_bytes += size_bytes
        self._waiting_bytes += size_bytes
        if len(lane.records) >= BATCH_RECORDS or self._waiting_bytes >= WAITING_BYTES:
            self.flush()

    @property
    def waiting(self) -> bool:
        return self._waiting_bytes > 0

    def flush(self) -> None:
        """Return when everything sent so far is acknowledged."""
        waiting = {partition: lane for partition, lane in self._lanes.items() if lane.records}
        batches = {partition: self._batch(lane) for partition, lane in waiting.items()}
        self._waiting_bytes = 0
        deadline = time.monotonic() + self._cluster.retry_s
        failure: Exception | None = None
        while batches:
            try:
                failure = self._send_once(batches, waiting)
                if failure is None:
                    continue
            except (Disconnected, TimedOut) as error:
                failure = error
            if time.monotonic() >= deadline:
                raise failure
            self._cluster.forget()
            time.sleep(RETRY_PAUSE_S)
        self._keyless_turn = (self._keyless_turn + 1) % self.partitions  # keyless records stay together batch by batch

    def _send_once(self, batches: dict[int, bytearray], waiting: dict[int, _Lane]) -> Refused | None:
        """Take what is acknowledged out of `batches`; the error that lets us try the others again, if any."""
        topic = self._topic
        answers = ask_leaders(
            self._cluster,
            ApiKey.PRODUCE,
            [(topic, partition) for partition in batches],
            lambda led: self._request(led, batches),
        )
        failure = None
        for partition in (one for answer in answers for part in answer.responses for one in part.partition_responses):
            if partition.error_code not in (0, DUPLICATE_SEQUENCE):
                message = getattr(partition, "error_message", None)
                refused = Refused(partition.error_code, f"cannot produce to {topic}-{partition.index}", message)
                if not refused.retriable:
                    raise refused
                failure = refused
                continue
            lane = waiting[partition.index]
            count = len(lane.records)
            lane.sequence = (lane.sequence + count) & 0x7FFFFFFF
            lane.records, lane.size_bytes = [], 0
            del batches[partition.index]
            self._stored(partition.index, partition.base_offset, count)
        return failure

    def _request(self, led: dict[str, list[int]], batches: dict[int, bytearray]) -> Struct:
        partitions = [Struct(index=index, records=batches[index]) for index in led[self._topic]]
        return Struct(
            acks=ACKS_ALL,
            timeout_ms=int(self._cluster.timeout_s * 1000),
            topic_data=[Struct(name=self._topic, partition_data=partitions)],
        )

    def _batch(self, lane: _Lane) -> bytearray:
        return encode_batch(
            lane.records,
            compression=self._compression,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=lane.sequence if self._producer_id >= 0 else -1,
        )

    def _identity(self) -> tuple[int, int]:
        """A producer id; without one (a server too old for it) a lost answer may store a batch twice."""

        def ask() -> tuple[int, int]:
            answer = self._cluster.any().call(
                ApiKey.INIT_PRODUCER_ID, Struct(transactional_id=None, transaction_timeout_ms=0)
            )
            check(answer.error_code, "cannot begin to produce")
            return answer.producer_id, answer.producer_epoch

        try:
            return self._cluster.retry(ask)
        except Unsupported:
            return -1, -1
