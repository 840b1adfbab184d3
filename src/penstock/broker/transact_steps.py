"""The verbs of named steps: many write, one commits. See delivery/step.py for what each may expect."""

import asyncio
from collections.abc import Collection, Mapping, Sequence

from penstock.broker.coordinate import Commit, OffsetCommit
from penstock.broker.transact_shell import TransactionShell, mark_seen, resolved
from penstock.delivery.offsets import TopicPartition
from penstock.delivery.transaction_events import Opened, StepDescription
from penstock.model.errors import PenstockError, UnknownTransaction
from penstock.security.acl import Operation
from penstock.security.principal import Principal

OFFSETS_LABEL = "offsets"  # of the writer that holds the groups' offsets of a step
OFFSETS_TIMEOUT_MS = 60_000


class StepVerbs(TransactionShell):
    def open_writer(
        self, principal: Principal, name: str, epoch: int, label: str, timeout_ms: int
    ) -> asyncio.Future[Opened]:
        """A writer of the step. What it writes nobody sees until a commit names it."""
        self._check(principal, Operation.WRITE, name)
        return self._with_id(lambda new_id: self._open(name, epoch, label, timeout_ms, new_id))

    def _open(
        self, name: str, epoch: int, label: str, timeout_ms: int, new_id: int, groups: Collection[str] = ()
    ) -> asyncio.Future[Opened]:
        self._host.check_writers()
        owner = self._host.admit_step(name)
        open_one = owner.machine.open
        opened = self._ask(
            owner, lambda ticket: open_one(self._host.now, ticket, epoch, label, timeout_ms, new_id, groups)
        )
        if new_id in owner.machine.writers:
            self._host.own(owner, new_id)
        return opened

    def commit_step(
        self,
        principal: Principal,
        name: str,
        epoch: int,
        writers: Sequence[int],
        mark: str,
        offsets: Mapping[str, Mapping[TopicPartition, int]],
    ) -> asyncio.Future[bool]:
        """Show what these writers wrote, and count these offsets, at once; abort the others. False: done before."""
        self._check(principal, Operation.WRITE, name)
        if not offsets or self._is_done(name, epoch):
            return self._commit(name, epoch, writers, mark)
        return self._begin(self._pend_and_commit(principal, name, epoch, writers, mark, offsets))

    def _is_done(self, name: str, epoch: int) -> bool:
        owner = self._host.steps.get(name)
        return owner is not None and epoch in owner.machine.done

    def _commit(self, name: str, epoch: int, writers: Sequence[int], mark: str) -> asyncio.Future[bool]:
        owner = self._host.admit_step(name)
        commit = owner.machine.commit
        return self._ask(owner, lambda ticket: commit(self._host.now, ticket, epoch, writers, mark))

    async def _pend_and_commit(
        self,
        principal: Principal,
        name: str,
        epoch: int,
        writers: Sequence[int],
        mark: str,
        offsets: Mapping[str, Mapping[TopicPartition, int]],
    ) -> bool:
        """The offsets are a writer of their own: pending in their groups until the step is committed with it."""
        new_id = await self._identities.take_producer_id()
        opened = await self._open(name, epoch, OFFSETS_LABEL, OFFSETS_TIMEOUT_MS, new_id, tuple(offsets))
        if opened.done:
            return await self._commit(name, epoch, writers, mark)
        try:
            for group, wanted in offsets.items():
                commits = {partition: Commit(offset) for partition, offset in wanted.items()}
                refusals = await self._coordinator.pend(principal, group, OffsetCommit(commits), new_id)
                for refused in refusals.values():
                    if refused is not None:
                        raise refused
            return await self._commit(name, epoch, [*writers, new_id], mark)
        except PenstockError:
            if not self._is_done(name, epoch):
                owner = self._host.admit_step(name)
                abort = owner.machine.abort
                gone = self._ask(owner, lambda ticket: abort(self._host.now, ticket, epoch, (new_id,)))
                gone.add_done_callback(mark_seen)
            raise

    def abort_step(self, principal: Principal, name: str, epoch: int) -> asyncio.Future[int]:
        """Resolves, when it is done, to the number of writers that were aborted."""
        self._check(principal, Operation.WRITE, name)
        owner = self._host.steps.get(name)
        if owner is None:
            return resolved(0)
        abort = owner.machine.abort
        return self._ask(owner, lambda ticket: abort(self._host.now, ticket, epoch))

    def knows_step(self, name: str) -> bool:
        """For the broker's own steps: whether anything of this name is committed or open."""
        return name in self._host.steps

    def step_names(self, prefix: str) -> list[str]:
        return [name for name in self._host.steps if name.startswith(prefix)]

    def describe_step(self, principal: Principal, name: str) -> StepDescription:
        self._check(principal, Operation.DESCRIBE, name)
        owner = self._host.steps.get(name)
        if owner is None:
            raise UnknownTransaction(f"there is no step {name!r}")
        description: StepDescription = owner.machine.describe()
        return description

    def forget_step(self, principal: Principal, name: str) -> asyncio.Future[None]:
        """Resolves when nothing is known of the step any more; what it has open is aborted."""
        self._check(principal, Operation.DELETE, name)
        owner = self._host.steps.get(name)
        if owner is None:
            return resolved(None)
        forget = owner.machine.forget
        return self._ask(owner, lambda ticket: forget(self._host.now, ticket))
