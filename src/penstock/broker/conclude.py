"""Endings performed: markers appended to partitions, pending offsets of groups kept or dropped.

The tasks of an ending are tried side by side, a bounded number at a time. What could not be done is reported, and asked
for again. What there is nothing left of, a deleted topic for one, is done. A commit is shown when all of its markers
were tried: until then the stable end of every partition stays before it, so nobody sees it in one and not yet in
another. If some could not be written, the others are shown all the same: a partition that fails holds up no other.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from penstock.delivery.transaction_events import Mark, PendingEnd, Task
from penstock.log.partition import Partition
from penstock.log.topics import Topic, Topics
from penstock.model.errors import (
    InvalidProducerEpoch,
    PenstockError,
    ProducerFenced,
    StorageFailed,
    UnknownPartition,
    UnknownTopic,
)

_log = logging.getLogger(__name__)

MAX_TASKS_AT_ONCE = 1_000

# There is nothing left to end: the topic is gone, or the producer has written under a newer epoch, which it was given
# when its transaction had ended.
_OVER = (UnknownTopic, UnknownPartition, InvalidProducerEpoch, ProducerFenced)

Report = Callable[[list[Task]], None]  # told what could not be done


class Groups(Protocol):
    """Who keeps groups' offsets (see broker/coordinate.py)."""

    def end_pending(self, name: str, producer_id: int, commit: bool) -> asyncio.Future[None]: ...


class _Run:
    """One go at the tasks of an ending."""

    __slots__ = ("held", "left", "missing", "report", "waiting")

    def __init__(self, tasks: Sequence[Task], report: Report) -> None:
        self.waiting = list(reversed(tasks))
        self.missing = 0
        self.left: list[Task] = []
        self.held: dict[Partition, None] = {}
        self.report = report

    def end(self, partition: Partition, mark: Mark) -> asyncio.Future[None]:
        if mark.commit and partition.hold(self, mark.producer_id):
            self.held[partition] = None
        return _end(partition, mark)

    def show(self) -> None:
        """In all partitions, and only then is anybody told who may look at several."""
        freed = [(partition, partition.let_go(self)) for partition in self.held]
        self.held.clear()
        for partition, stable_bytes in freed:
            try:
                partition.tell_stable(stable_bytes)
            except Exception:  # somebody's reader; the ending goes on
                _log.exception("a reader of %s could not be told what is new", partition.stream)


class Concluder:
    def __init__(self, topics: Topics, groups: Groups) -> None:
        self._topics = topics
        self._groups = groups
        self._opening: set[asyncio.Task[None]] = set()
        self._failing = False
        self._stopped = False
        self._runs = 0
        self._idle = asyncio.Event()

    def run(self, tasks: Sequence[Task], report: Report) -> None:
        """Try all of these; what is open already is written to before this returns, so its order is fixed."""
        self._runs += 1
        self._idle.clear()
        self._go_on(_Run(tasks, report))

    async def settled(self) -> None:
        """When everything was tried that was asked for until now."""
        if self._runs:
            await self._idle.wait()

    async def stop(self) -> None:
        self._stopped = True
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _go_on(self, run: _Run) -> None:
        while run.waiting and run.missing < MAX_TASKS_AT_ONCE:
            task = run.waiting.pop()
            run.missing += 1
            try:
                done = self._try(run, task)
            except Exception as error:  # whatever it is: a run that never ends would hold its partitions for ever
                self._note(run, task, error)
            else:
                done.add_done_callback(partial(self._landed, run, task))
        if not run.missing and not self._stopped:
            self._runs -= 1
            if not self._runs:
                self._idle.set()
            run.show()
            run.report(run.left)

    def _landed(self, run: _Run, task: Task, done: asyncio.Future[None]) -> None:
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        self._note(run, task, error)
        if not run.missing or run.waiting:
            self._go_on(run)

    def _note(self, run: _Run, task: Task, error: BaseException | None) -> None:
        run.missing -= 1
        if error is not None and not isinstance(error, _OVER):
            run.left.append(task)
            if not self._failing and not self._stopped:
                self._failing = True  # once, not for every retry
                unforeseen = None if isinstance(error, PenstockError | asyncio.CancelledError) else error
                _log.warning(
                    "a transaction cannot be ended yet, it is tried again: %s: %s", task, error, exc_info=unforeseen
                )
        elif self._failing and error is None:
            self._failing = False
            _log.info("transactions can be ended again")

    def _try(self, run: _Run, task: Task) -> asyncio.Future[None]:
        if isinstance(task, PendingEnd):
            return self._groups.end_pending(task.group, task.producer_id, task.commit)
        topic = self._topics.get(task.partition.topic)
        if not 0 <= task.partition.partition < topic.partition_count:
            raise UnknownPartition(f"there is no partition {task.partition}")
        partition = topic.partitions[task.partition.partition]
        if partition is not None:
            return run.end(partition, task)
        opening = asyncio.create_task(self._open_and_end(run, topic, task), name="end a transaction")
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        return opening

    async def _open_and_end(self, run: _Run, topic: Topic, mark: Mark) -> None:
        partition = await self._topics.open(topic, mark.partition.partition)
        await run.end(partition, mark)


def _end(partition: Partition, mark: Mark) -> asyncio.Future[None]:
    if partition.closed:
        raise UnknownTopic(f"topic {mark.partition.topic!r} was deleted")
    try:
        return partition.end_transaction(mark.producer_id, mark.epoch, mark.commit).durable
    except OSError as error:
        raise StorageFailed(f"a marker could not be written: {error}") from error
