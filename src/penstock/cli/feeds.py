"""What `penstock subscribe` reads: a topic as a log, as a queue or as it is published. Printing means more in each."""

from collections.abc import Sequence
from typing import Any, Generic

from penstock.cli.positions import Kind, Position, resolve
from penstock.cli.terminal import note
from penstock.client.admin import Match
from penstock.client.log import LogSubscription, Start
from penstock.client.message import Message
from penstock.client.push import PubSubSubscription
from penstock.client.queue import QueueSubscription
from penstock.client.subscription import S
from penstock.client.sync import SyncClient
from penstock.client.sync_subscription import SyncSubscription

LOOK_S = 0.3  # how long nothing must come before we look whether that is the end
FILTERED_LOOK_S = 1.5  # and before we take it for the end, where a filter hides how far we are


class Feed(Generic[S]):
    """One topic. Begins when it is made."""

    patience_s = LOOK_S

    def __init__(self, topic: str, subscription: SyncSubscription[S]) -> None:
        self.topic = topic
        self.subscription = subscription
        self._missed = 0
        subscription.start()

    def printed(self, messages: Sequence[Message]) -> None:
        """These are with whoever reads us."""
        if self.subscription.gap > self._missed:
            note(f"{self.subscription.gap - self._missed:,} messages of {self.topic} were missed: {self._reason}")
            self._missed = self.subscription.gap

    _reason = "this reader was too slow"

    def is_at_end(self, idle: bool) -> bool:
        """Whether all was read that there is; `idle`: nothing came for `patience_s`."""
        return False

    def close(self) -> None:
        self.subscription.close()


class PubSubFeed(Feed[PubSubSubscription]):
    def __init__(self, client: SyncClient, topic: str, matches: Sequence[Match]) -> None:
        super().__init__(topic, client.subscribe(topic, "pubsub", matches=matches))


class LogFeed(Feed[LogSubscription]):
    """Ends where the topic ended when we began."""

    _reason = "they were removed before they were read"

    def __init__(
        self,
        client: SyncClient,
        topic: str,
        matches: Sequence[Match],
        position: Position,
        group: str | None,
        partitions: Sequence[int] | None,
    ) -> None:
        chosen = list(partitions or range(client.topic(topic).partitions))
        places = [(topic, partition) for partition in chosen]
        self._ends = {partition: bound.end for (_, partition), bound in client.bounds(places).items()}
        self._filtered = bool(matches)
        self._commits = group is not None
        self.patience_s = FILTERED_LOOK_S if matches else LOOK_S
        start: Start
        if position.kind is Kind.BEGINNING:
            start = "earliest"
        elif position.kind is Kind.END:
            start = "latest"
        else:
            start = {partition: offset for (_, partition), offset in resolve(client, position, places).items()}
        super().__init__(
            topic,
            client.subscribe(topic, start=start, partitions=chosen, group=group, auto_commit=False, matches=matches),
        )

    def printed(self, messages: Sequence[Message]) -> None:
        super().printed(messages)
        if self._commits:
            self.subscription.commit()

    def is_at_end(self, idle: bool) -> bool:
        if idle and self._filtered:
            return True  # what the filter holds back does not come, however long we wait
        return all(self.subscription.read_to(partition) >= end for partition, end in self._ends.items())


class QueueFeed(Feed[QueueSubscription]):
    """Ends when nothing waits in the queue."""

    def __init__(
        self, client: SyncClient, topic: str, matches: Sequence[Match], name: str, credit: int, ack: bool
    ) -> None:
        self._client = client
        self._name = name
        self._ack = ack
        self._held: list[Message] = []
        super().__init__(topic, client.subscribe(topic, "queue", name=name, credit=credit, matches=matches))

    def printed(self, messages: Sequence[Message]) -> None:
        if self._ack:
            self.subscription.ack(messages)
        else:
            self._held += messages
            self.subscription.add_credit(len(messages))  # what is held back must not stop what follows

    def is_at_end(self, idle: bool) -> bool:
        if not idle:
            return False
        queue = self._client.queue(self.topic, self._name)
        coming = queue.pending - queue.counts.get("delayed", 0)
        if queue.counts.get("consumers", 0) <= 1:
            coming += queue.processing - len(self._held)  # leased to us, and still on its way
        return coming <= 0 or queue.paused

    def close(self) -> None:
        if self._held:
            self.subscription.release(self._held)
        super().close()


AnyFeed = Feed[Any]
