"""Records that the server pushes: the pub/sub view, and the log view with a filter.

Credit is how many messages the server may send ahead; it is given back as messages are taken, so that one who reads
slowly is behind on the server, where that is bounded, and never here.
"""

from collections.abc import Sequence

from penstock.client.connection import Answer, Connection
from penstock.client.errors import Disconnected
from penstock.client.message import Message
from penstock.client.session import Session
from penstock.client.subscription import Subscription
from penstock.model.batch import decode_batch
from penstock.model.errors import PenstockError
from penstock.wire.native import messages as wire

CREDIT = 1_000


class PushSubscription(Subscription):
    def __init__(self, session: Session, topic: str, credit: int) -> None:
        super().__init__(session, topic)
        self._credit = credit
        self._taken = 0  # since credit was last given back
        self._id = 0
        self._welcomed = self._loop.create_future()

    def _request(self) -> wire.Message:
        raise NotImplementedError

    async def _begin(self) -> None:
        await self._session.call(wire.FindTopic(self.topic))  # made on first use, as when publishing
        await self._join()

    async def _join(self) -> None:
        self._session.add(self)
        await self._welcomed

    def resume(self, connection: Connection) -> None:
        self._connection = connection
        self._taken = len(self._buffer) * -1  # these were paid for on an older connection
        self._id = connection.subscribe(self._request(), self._answered, self._pushed)

    def _answered(self, answer: Answer) -> None:
        if isinstance(answer, Disconnected):
            return
        if isinstance(answer, PenstockError):
            self.fail(answer)
        elif not self._welcomed.done():
            self._welcomed.set_result(None)

    def fail(self, error: PenstockError) -> None:
        if not self._welcomed.done():
            self._welcomed.set_exception(error)
            self._welcomed.exception()  # whoever waits for the start is told by the task that started
        self._stop(error)

    def _pushed(self, push: Answer) -> None:
        if isinstance(push, PenstockError):
            self._stop(push)
            return
        self.gap += push.gap
        for batch in push.batches:
            topic, partition = batch.topic, batch.partition
            records = decode_batch(batch.batch)
            self._buffer.extend([Message(topic, partition, record) for record in records])
            if records:
                self._reached(partition, records[-1].offset + 1)
        self._wake()

    def _reached(self, partition: int, next_offset: int) -> None:
        """Everything before this offset has come."""

    def _next(self) -> Message | None:
        if not self._buffer:
            return None
        self._give_back(1)
        return self._buffer.popleft()

    def _take(self, max_messages: int) -> list[Message]:
        batch = super()._take(max_messages)
        self._give_back(len(batch))
        return batch

    def _give_back(self, count: int) -> None:
        self._taken += count
        if self._taken * 2 >= self._credit and self._connection is not None:
            self._connection.tell(wire.AddCredit(self._id, self._taken))
            self._taken = 0

    async def _finish(self) -> None:
        if self._connection is not None:
            self._connection.ask(wire.Unsubscribe(self._id), lambda _: None)
            self._connection.forget(self._id)


class PubSubSubscription(PushSubscription):
    """Everything that is published from now on. What comes while there is no connection is missed."""

    def __init__(
        self,
        session: Session,
        topic: str,
        *,
        credit: int,
        matches: Sequence[wire.MatchFields],
        max_behind: int,
        overflow: str,
    ) -> None:
        super().__init__(session, topic, credit)
        self._matches = list(matches)
        self._max_behind = max_behind
        self._overflow = overflow

    def _request(self) -> wire.Message:
        return wire.SubscribePubSub(self.topic, self._credit, self._matches, self._max_behind, self._overflow)
