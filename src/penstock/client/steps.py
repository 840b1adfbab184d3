"""Named steps: what is published in one is seen all at once when it is committed, and once for a name and epoch.

    async with client.step("totals", epoch, mark="orders up to 500") as step:
        await step.publish("totals", {"sum": 12})
        step.commit_offsets("totals", {("orders", 0): 500})

`client.steps` has the single requests, for work that is spread over processes: each opens writers of its own, and one
of them commits, naming those that count.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from penstock.client.background import Background
from penstock.client.groups import Place
from penstock.client.lane import Writer
from penstock.client.message import GivenHeaders, Key, Value, make_record
from penstock.client.outbox import ANY_PARTITION
from penstock.client.publisher import ACKS, Publisher
from penstock.client.session import Session, pause_s
from penstock.model.errors import ConcurrentTransactions, InvalidRequest, PenstockError, StepMismatch
from penstock.model.message import Placed
from penstock.wire.native import messages as wire

STEP_TIMEOUT_S = 3_600.0
PATIENCE_S = 30.0  # for what went before to be ended

T = TypeVar("T")
GroupOffsets = Mapping[str, Mapping[Place, int]]  # by group: the next offset to read, by topic and partition


class StepWriter(NamedTuple):
    """Under which identity to write; `done`: the step was committed before, with this mark."""

    producer_id: int
    producer_epoch: int
    done: bool
    mark: str


class StepDescription(NamedTuple):
    name: str
    committed: dict[int, str]  # the marks of the epochs that are remembered
    open: dict[int, list[str]]  # the writers of those that are not committed


class Steps:
    """`client.steps`. Repeating any of these after a lost answer is safe."""

    def __init__(self, call: Callable[[wire.Message], Awaitable[Any]]) -> None:
        self._call = call

    async def open_writer(
        self, name: str, epoch: int, writer: str = "", *, timeout_s: float = STEP_TIMEOUT_S
    ) -> StepWriter:
        """A writer of the step; another one for each call."""
        answer = await self._ask(wire.OpenWriter(name, epoch, writer, round(timeout_s * 1000)))
        return StepWriter(answer.producer_id, answer.producer_epoch, answer.done, answer.mark)

    async def commit(
        self, name: str, epoch: int, writers: Iterable[int], mark: str = "", offsets: GroupOffsets | None = None
    ) -> bool:
        """Show what these writers (producer ids) wrote and abort the others. False: it was committed before.

        Raises StepMismatch if that was with another mark, StepAborted if a writer is not there any more.
        """
        kept = [
            (group, *place, offset) for group, places in (offsets or {}).items() for place, offset in places.items()
        ]
        answer = await self._ask(wire.CommitStep(name, epoch, list(writers), mark, kept))
        return bool(answer.count)

    async def abort(self, name: str, epoch: int) -> int:
        """Abort what is written under this epoch and not committed; how many writers that were."""
        answer = await self._ask(wire.AbortStep(name, epoch))
        return int(answer.count)

    async def describe(self, name: str) -> StepDescription:
        """Raises UnknownTransaction."""
        answer = await self._call(wire.DescribeStep(name))
        return StepDescription(answer.step, dict(answer.committed), dict(answer.open))

    async def forget(self, name: str) -> None:
        """Forget everything about a name; what it has open is aborted."""
        await self._ask(wire.ForgetStep(name))

    async def _ask(self, request: wire.Message) -> Any:
        """What went before under this name may still be on its way to its end."""
        loop = asyncio.get_running_loop()
        deadline, attempt = loop.time() + PATIENCE_S, 0
        while True:
            try:
                return await self._call(request)
            except ConcurrentTransactions:
                if loop.time() >= deadline:
                    raise
            await asyncio.sleep(pause_s(attempt))
            attempt += 1


class NamedStep:
    """One step of one writer. Made by `client.step`; see the module.

    `done` tells from the beginning that it was committed before: then publishing does nothing.
    """

    def __init__(
        self,
        steps: Steps,
        publisher_for: Callable[[Writer], tuple[Session, Publisher]],
        name: str,
        epoch: int,
        mark: str,
        timeout_s: float,
        label: str,
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.mark = mark
        self.done = False
        self._steps = steps
        self._publisher_for = publisher_for
        self._timeout_s = timeout_s
        self._label = label
        self._producer_id = -1
        self._session: Session | None = None
        self._publisher: Publisher | None = None
        self._offsets: dict[str, dict[Place, int]] = {}
        self._error: BaseException | None = None  # the first that a publish met: there is a hole in what was written

    async def begin(self) -> Self:
        """Raises StepMismatch if it was committed before as something else."""
        writer = await self._steps.open_writer(self.name, self.epoch, self._label, timeout_s=self._timeout_s)
        self.done = writer.done
        if writer.done:
            if writer.mark != self.mark:
                raise StepMismatch(f"step {self.name!r}, epoch {self.epoch} was committed before as {writer.mark!r}")
        else:
            self._producer_id = writer.producer_id
            self._session, self._publisher = self._publisher_for(Writer(writer.producer_id, writer.producer_epoch))
        return self

    # -- publishing ---------------------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: Key = None,
        headers: GivenHeaders | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        delay_s: float | None = None,
        deliver_at_ms: int | None = None,
        ttl_s: float | None = None,
        priority: int | None = None,
    ) -> Placed:
        """As `Client.publish`; seen when the step is committed."""
        record = make_record(key, value, headers, timestamp_ms, delay_s, deliver_at_ms, ttl_s, priority)
        chosen = ANY_PARTITION if partition is None else partition
        publisher = self._writing()
        if publisher is None:
            return Placed(chosen, -1)
        return await self._noting(publisher.publish(topic, record, chosen, ACKS["all"]))

    async def publish_many(self, topic: str, messages: Iterable[Value]) -> list[Placed]:
        """As `Client.publish_many`."""
        values = messages if isinstance(messages, (list, tuple)) else list(messages)
        publisher = self._writing()
        if publisher is None:
            return [Placed(ANY_PARTITION, -1)] * len(values)
        return await self._noting(publisher.publish_many(topic, values, ACKS["all"]))

    def commit_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        """What the group has read, by topic and partition: committed together with what is published."""
        self._offsets.setdefault(group, {}).update(offsets)

    @property
    def producer_id(self) -> int:
        """By which a commit names this writer; -1 if there is nothing to write."""
        return self._producer_id

    def _writing(self) -> Publisher | None:
        if self._publisher is None and not self.done:
            raise InvalidRequest(f"step {self.name!r}, epoch {self.epoch} has not begun, or is over")
        return self._publisher

    async def _noting(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except BaseException as error:
            self._error = self._error or error
            raise

    # -- the end ------------------------------------------------------------------------------------------------

    async def commit(self) -> bool:
        """Show what was published. False if the step was committed before."""
        publisher = self._writing()
        if publisher is None:
            return False
        await publisher.flush()
        if self._error is not None:
            await self.abort()
            raise self._error
        self._leave()
        committed = await self._steps.commit(self.name, self.epoch, [self._producer_id], self.mark, self._offsets)
        self.done = True
        return committed

    async def abort(self) -> None:
        """Nothing of it will be seen; the epoch may be begun anew."""
        if self._publisher is not None:
            self._leave()
            await self._steps.abort(self.name, self.epoch)

    def _leave(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None and self._session is not None:
            self._session.discard(publisher)
            publisher.close()

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.commit()
            return
        try:
            await self.abort()
        except PenstockError as failure:  # the server aborts it in its time; the reason to is what counts
            assert error is not None
            error.add_note(f"the step {self.name!r} is open until its time-out: {failure}")


# -- without a loop -----------------------------------------------------------------------------------------


class SyncSteps:
    """`Steps` with calls that wait."""

    def __init__(self, inner: Steps, loop: Background) -> None:
        self.inner = inner
        self._loop = loop

    def open_writer(self, name: str, epoch: int, writer: str = "", *, timeout_s: float = STEP_TIMEOUT_S) -> StepWriter:
        return self._loop.wait(self.inner.open_writer(name, epoch, writer, timeout_s=timeout_s))

    def commit(
        self, name: str, epoch: int, writers: Sequence[int], mark: str = "", offsets: GroupOffsets | None = None
    ) -> bool:
        return self._loop.wait(self.inner.commit(name, epoch, writers, mark, offsets))

    def abort(self, name: str, epoch: int) -> int:
        return self._loop.wait(self.inner.abort(name, epoch))

    def describe(self, name: str) -> StepDescription:
        return self._loop.wait(self.inner.describe(name))

    def forget(self, name: str) -> None:
        self._loop.wait(self.inner.forget(name))


class SyncNamedStep:
    """`with client.step(name, epoch) as step`; see `NamedStep`."""

    def __init__(self, inner: NamedStep, loop: Background) -> None:
        self.inner = inner
        self._loop = loop

    @property
    def done(self) -> bool:
        return self.inner.done

    def publish(self, topic: str, value: Value, **options: Any) -> Placed:
        return self._loop.wait(self.inner.publish(topic, value, **options))

    def publish_many(self, topic: str, messages: Iterable[Value]) -> list[Placed]:
        return self._loop.wait(self.inner.publish_many(topic, list(messages)))

    def commit_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        self.inner.commit_offsets(group, offsets)

    def commit(self) -> bool:
        return self._loop.wait(self.inner.commit())

    def abort(self) -> None:
        self._loop.wait(self.inner.abort())

    def __enter__(self) -> Self:
        self._loop.wait(self.inner.begin())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.wait(self.inner.__aexit__(kind, error, trace))
