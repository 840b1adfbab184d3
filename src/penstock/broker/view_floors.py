"""How far each partition is settled by all the views that read it, told to the log now and then.

A partition of a topic with cleanup.policy=settled may forget what lies before the lowest floor of its views. The floor
of a machine is durable, so what is forgotten is never asked for again.
"""

from collections.abc import Collection, Mapping

from penstock.broker.view import View, ViewStream
from penstock.broker.view_host import ViewHost
from penstock.log.topics import Topic

TELL_EVERY_MS = 1_000
CHORE = "floors"


class Floors:
    def __init__(self, host: ViewHost, by_topic: Mapping[str, Collection[View]]) -> None:
        self._host = host
        self._by_topic = by_topic
        self._moved: set[View] = set()
        host.moved = self._note

    def _note(self, view: View) -> None:
        if view not in self._moved:
            self._moved.add(view)
            self._host.chores.set(CHORE, self._host.now.monotonic_ms + TELL_EVERY_MS)

    def tell(self) -> None:
        """The time has come."""
        moved, self._moved = self._moved, set()
        partitions: dict[tuple[str, int], ViewStream] = {}  # many views may have moved in the same one
        for view in moved:
            if view.gone is None:
                for number, stream in view.streams.items():
                    floor = view.machine.floor(number)
                    if stream.topic.settings.settled and view.floors.get(number) != floor:
                        view.floors[number] = floor
                        partitions[stream.topic.name, stream.index] = stream
        for stream in partitions.values():
            partition = stream.partition
            if partition is not None and not partition.closed:
                partition.note_settled(self.floor_of(stream.topic.name, stream.index))

    def tell_topic(self, topic: Topic) -> None:
        """Its views are others than before, or a partition of it was opened."""
        if topic.settings.settled:
            for index, partition in enumerate(topic.partitions):
                if partition is not None and not partition.closed:
                    partition.note_settled(self.floor_of(topic.name, index))

    def floor_of(self, topic: str, index: int) -> int | None:
        """The lowest floor of all views that read this partition; None when there is none."""
        floors = []
        for view in self._by_topic.get(topic, ()):
            number = view.numbers.get((topic, index))
            floors.append(0 if number is None else view.floors[number])  # a new partition: it will read all of it
        return min(floors, default=None)
