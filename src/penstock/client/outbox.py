"""One topic's messages on their way: which of its lanes each of them takes."""

from penstock.client.lane import Lane, Run, record_bytes
from penstock.model.errors import UnknownPartition
from penstock.model.partitioner import partition_for_key

ANY_PARTITION = -1


class Outbox:
    """One topic's lanes, and what waits until it is known how many there are."""

    __slots__ = ("asking", "compression", "lanes", "name", "partitions", "unsorted")

    def __init__(self, name: str, compression: int) -> None:
        self.name = name
        self.compression = compression
        self.partitions = 0  # not known yet
        self.asking = False
        self.unsorted: list[tuple[Run, list[int]]] = []
        self.lanes: dict[int, Lane] = {}

    def lane(self, partition: int) -> Lane:
        lane = self.lanes.get(partition)
        if lane is None:
            lane = self.lanes[partition] = Lane(self.name, partition, self.compression)
        return lane

    def sort(self, run: Run, wanted: list[int], turn: int) -> list[Lane]:
        """Put the run into the lanes that its keys choose; `wanted` names partitions, ANY_PARTITION: as the key says.

        Without a key they take turns, `turn` by `turn`. Raises UnknownPartition, and then nothing was put.
        """
        count = self.partitions
        if count == 1 and (not wanted or max(wanted) <= 0):
            lane = self.lane(0)
            lane.add(run)
            return [lane]
        run.is_fixed = run.is_fixed or any(chosen != ANY_PARTITION for chosen in wanted)
        parts: dict[int, list[int]] = {}
        turn %= count
        for index, record in enumerate(run.records):
            chosen = wanted[index] if wanted else ANY_PARTITION
            if chosen == ANY_PARTITION:
                chosen = turn if record.key is None else partition_for_key(record.key, count)
            elif chosen >= count:
                raise UnknownPartition(f"topic {self.name!r} has no partition {chosen}; it has 0 to {count - 1}")
            parts.setdefault(chosen, []).append(index)
        lanes = []
        for chosen, indexes in parts.items():
            lane = self.lane(chosen)
            lanes.append(lane)
            if len(parts) == 1:
                lane.add(run)
                break
            records = [run.records[index] for index in indexes]
            size_bytes = sum(map(record_bytes, records))
            places = [run.indexes[index] for index in indexes]
            lane.add(Run(run.claim, places, records, size_bytes, run.acks, run.deadline, run.is_fixed))
        return lanes
