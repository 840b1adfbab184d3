"""Where the machines of transactions and named steps live, and who owns which producer id."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from penstock.broker.conclude import Concluder, Groups
from penstock.broker.hosting import Host, Hosted, Ledger
from penstock.delivery.decision import Effect
from penstock.delivery.offsets import TopicPartition
from penstock.delivery.step import Step
from penstock.delivery.transaction import Transaction
from penstock.delivery.transaction_events import Conclude, Mark, ProducerIdentity, Task, TransactionSettings
from penstock.delivery.transaction_facts import TransactionKey, read_key
from penstock.log.partition import Partition
from penstock.log.topics import Topics
from penstock.model.clock import Clock
from penstock.model.errors import InvalidRequest, LimitReached

NAME_MAX_CHARS = 32_767  # what a string of Kafka's protocol can hold
STEP_NAME_MAX_CHARS = 1_024
MAX_STEP_WRITERS = 200_000  # of all steps, open or being ended

_TRANSACTION, _STEP, _ORPHANS = "transaction:", "step:", "orphans:"


class Owner(Hosted[Any]):
    """A machine, its turns, and the producer ids that are its own."""

    __slots__ = ("producer_ids",)

    def __init__(self, machine: Transaction | Step) -> None:
        super().__init__(machine)
        self.producer_ids: set[int] = set()


class TransactionHost(Host[Owner]):
    def __init__(
        self, ledger: Ledger, clock: Clock, settings: TransactionSettings, topics: Topics, groups: Groups
    ) -> None:
        super().__init__(ledger, clock)
        self.settings = settings
        self.transactions: dict[str, Owner] = {}
        self.steps: dict[str, Owner] = {}
        self.owners: dict[int, Owner] = {}  # by producer id
        self._topics = topics
        self._concluder = Concluder(topics, groups)
        self._orphans: dict[Task, None] = {}  # to be tried again; each is of an open partition
        self._loaded = False

    async def load(self) -> None:
        async for key, value in self.ledger.replay():
            parsed = read_key(key)
            if isinstance(parsed, TransactionKey):
                (self.transactions.get(parsed.name) or self._add_transaction(parsed.name)).machine.replay(value)
            elif parsed is not None:
                (self.steps.get(parsed.step) or self._add_step(parsed.step)).machine.replay(parsed, value)
        every = [*self.transactions.values(), *self.steps.values()]
        for owner in every:
            for producer_id in owner.machine.producer_ids:
                self.own(owner, producer_id)
        self._loaded = True
        for partition in self._topics.open_partitions():
            self.adopt(partition)
        for owner in every:
            self.perform(owner, owner.machine.resume(self.now))
        # Before anybody is let in: a crash may have left markers of a commit in some of its partitions only.
        await self._concluder.settled()

    async def stop(self) -> None:
        self.release()
        self.alarms.stop()
        await self._concluder.stop()

    # -- machines -----------------------------------------------------------------------------------------------

    def admit(self, name: str) -> Owner:
        """The transactional id, made if it is not there. If nothing comes of it, it is gone after the event."""
        owner = self.transactions.get(name)
        if owner is not None:
            return owner
        if not 0 < len(name) <= NAME_MAX_CHARS:
            raise InvalidRequest(f"a transactional id has 1 to {NAME_MAX_CHARS} characters")
        if len(self.transactions) >= self.settings.max_ids:
            raise LimitReached(
                f"the server keeps at most {self.settings.max_ids} transactional ids (max_transactional_ids)"
            )
        return self._add_transaction(name)

    def admit_step(self, name: str) -> Owner:
        """The step, made if it is not there; gone again if nothing comes of it."""
        owner = self.steps.get(name)
        if owner is not None:
            return owner
        if not 0 < len(name) <= STEP_NAME_MAX_CHARS:
            raise InvalidRequest(f"a step's name has 1 to {STEP_NAME_MAX_CHARS} characters")
        if len(self.steps) >= self.settings.max_steps:
            raise LimitReached(f"the server keeps at most {self.settings.max_steps} named steps (max_steps)")
        return self._add_step(name)

    def check_writers(self) -> None:
        if len(self.owners) >= self.settings.max_ids + MAX_STEP_WRITERS:
            raise LimitReached(f"the server keeps at most {MAX_STEP_WRITERS} writers of steps")

    def _add_transaction(self, name: str) -> Owner:
        owner = self.transactions[name] = Owner(Transaction(name, self.settings))
        return owner

    def _add_step(self, name: str) -> Owner:
        owner = self.steps[name] = Owner(Step(name, self.settings))
        return owner

    def own(self, owner: Owner, producer_id: int) -> None:
        self.owners[producer_id] = owner
        owner.producer_ids.add(producer_id)

    def _disown(self, owner: Owner) -> None:
        """Forget the producer ids that a machine has no more."""
        for producer_id in owner.producer_ids.difference(owner.machine.producer_ids):
            owner.producer_ids.discard(producer_id)
            self.owners.pop(producer_id, None)

    def rest(self, owner: Owner) -> None:
        """After each event: forget a machine of which nothing is left, else be woken when it wants to be."""
        machine = owner.machine
        if isinstance(machine, Transaction):
            alarm, home = _TRANSACTION + machine.name, self.transactions
            if machine.producer_ids != owner.producer_ids:
                for producer_id in machine.producer_ids:
                    self.own(owner, producer_id)
                self._disown(owner)
        else:
            alarm, home = _STEP + machine.name, self.steps
        if not machine.is_blank or owner.turns:
            self.alarms.set(alarm, machine.next_deadline_ms(self.now))
        elif home.get(machine.name) is owner:
            del home[machine.name]
            self.alarms.set(alarm, None)
            for producer_id in owner.producer_ids:
                self.owners.pop(producer_id, None)

    def ring(self, name: str) -> None:
        if name == _ORPHANS:
            orphans, self._orphans = list(self._orphans), {}
            self._concluder.run(orphans, self._abandon)
            return
        kind, _, name = name.partition(":")
        owner = (self.transactions if kind + ":" == _TRANSACTION else self.steps).get(name)
        if owner is not None:
            self.perform(owner, owner.machine.tick(self.now))

    # -- endings ------------------------------------------------------------------------------------------------

    def do(self, owner: Owner, effects: Sequence[Effect]) -> None:
        for effect in effects:
            assert isinstance(effect, Conclude)
            self._concluder.run(effect.tasks, partial(self._concluded, owner, effect.token))

    def _concluded(self, owner: Owner, token: int, left: list[Task]) -> None:
        machine = owner.machine
        self.perform(owner, machine.concluded(self.now, token, left))
        if isinstance(machine, Step):
            self.perform(owner, machine.tidy(self.now))
            self._disown(owner)

    def adopt(self, partition: Partition) -> None:
        """See which machine owns each transaction that is open here; what nobody owns is aborted."""
        topic = self._topics.by_name.get(partition.topic)
        if topic is None or not self._loaded:
            return  # gone, or looked at when it is known who owns what
        place = TopicPartition(topic.name, partition.stream.partition)
        orphans: list[Task] = []
        for producer_id, found in list(partition.transactions.open.items()):
            identity = ProducerIdentity(producer_id, found.producer_epoch)
            owner = self.owners.get(producer_id)
            decision = None if owner is None else owner.machine.adopt(self.now, identity, place)
            if owner is not None and decision is not None:
                self.perform(owner, decision)
            else:
                # Under its own epoch: a newer one may be decided and not yet durable, and must not be known here first.
                orphans.append(Mark(place, *identity, commit=False))
        if orphans:
            self._concluder.run(orphans, self._abandon)

    def _abandon(self, left: list[Task]) -> None:
        if left:
            self._orphans.update(dict.fromkeys(left))
            self.alarms.set(_ORPHANS, self.now.monotonic_ms + self.settings.max_retry_ms)

    def has_topic(self, topic: str) -> bool:
        return any(partition.topic == topic for owner in self._writing for partition in owner.machine.partitions())

    def forget_topic(self, topic: str) -> None:
        for owner in self._writing:
            owner.machine.forget_topic(topic)

    @property
    def _writing(self) -> set[Owner]:
        """Those who may have written somewhere. Most names of steps rest, and have no producer."""
        return set(self.owners.values())
