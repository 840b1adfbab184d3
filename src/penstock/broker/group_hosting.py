"""Where group machines live. A group comes with the first event for it and goes when nothing is left of it."""

from collections.abc import Collection, Sequence

from penstock.broker.hosting import Host, Hosted, Ledger
from penstock.delivery.decision import Effect
from penstock.delivery.group import Group
from penstock.delivery.group_events import GroupSettings
from penstock.delivery.group_facts import read_key
from penstock.model.clock import Clock
from penstock.model.errors import InvalidGroup, LimitReached

GROUP_NAME_MAX_CHARS = 32_767  # what a string of Kafka's protocol can hold


class GroupHost(Host[Hosted[Group]]):
    def __init__(self, ledger: Ledger, clock: Clock, settings: GroupSettings) -> None:
        super().__init__(ledger, clock)
        self._settings = settings
        self.groups: dict[str, Hosted[Group]] = {}

    async def load(self) -> None:
        async for key, value in self.ledger.replay():
            parsed = read_key(key)
            if parsed is not None:
                hosted = self.groups.get(parsed.group) or self._add(parsed.group)
                hosted.machine.replay(parsed, value)
        for hosted in list(self.groups.values()):
            hosted.machine.resume(self.now)
            self.rest(hosted)

    def admit(self, name: str) -> Hosted[Group]:
        """The group, made if it is not there. One that nothing comes of is gone after the event it was made for."""
        hosted = self.groups.get(name)
        if hosted is not None:
            return hosted
        self.check_room((name,))
        return self._add(name)

    def check_room(self, names: Collection[str]) -> None:
        new = [name for name in names if name not in self.groups]
        if len(self.groups) + len(new) > self._settings.max_groups:
            raise LimitReached(f"the server keeps at most {self._settings.max_groups} groups (max_groups)")
        if any(len(name) > GROUP_NAME_MAX_CHARS for name in new):
            raise InvalidGroup(f"a group's name may have {GROUP_NAME_MAX_CHARS} characters")

    def _add(self, name: str) -> Hosted[Group]:
        hosted = self.groups[name] = Hosted(Group(name, self._settings))
        return hosted

    def rest(self, hosted: Hosted[Group]) -> None:
        """After each event: forget a group of which nothing is left, else be woken when it wants to be."""
        group = hosted.machine
        if not group.is_blank or hosted.turns:
            self.alarms.set(group.name, group.next_deadline_ms())
        elif self.groups.get(group.name) is hosted:
            group.bury()
            del self.groups[group.name]
            self.alarms.set(group.name, None)

    def ring(self, name: str) -> None:
        hosted = self.groups.get(name)
        if hosted is not None:
            self.perform(hosted, hosted.machine.tick(self.now))

    def do(self, hosted: Hosted[Group], effects: Sequence[Effect]) -> None:
        raise AssertionError(f"a group only answers, it does not ask for {effects}")
