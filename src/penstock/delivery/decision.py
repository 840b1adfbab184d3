"""What a delivery machine answers to an event: facts to remember, effects to perform, in that order.

Machines are pure. They have no clock, no loop, no randomness and no I/O; the shell around them (in the broker room)
hands in the moment and every new id, and obeys one protocol:

    1  call the event; the machine changes at once, so no other event can slip between its check and its change
    2  record the decision's facts in the ledger
    3  when they are durable call `recorded(facts)`, then perform the effects; when they could not be stored call
       `unrecorded(facts)` and answer the replies with that error instead
    4  decisions of one machine are settled (3) in the order they were made (1)

At start-up the recorded facts are replayed, the newest of each key last, and give the same machine.
"""

from dataclasses import dataclass, field
from typing import NamedTuple


class Moment(NamedTuple):
    """Now, on both clocks: sessions and deadlines never go back, what is remembered outlives the process."""

    monotonic_ms: int
    wall_ms: int


class Fact(NamedTuple):
    """One record of a compacted topic: of each key the newest value is what is true; None is a tombstone."""

    key: bytes
    value: bytes | None


class Effect:
    """Something the shell does once the facts beside it are durable."""

    __slots__ = ()


@dataclass(slots=True)
class Reply(Effect):
    """The answer to the request that carried this ticket: each ticket is answered exactly once.

    A result that is a PenstockError is raised to whoever asked.
    """

    ticket: int
    result: object


@dataclass(slots=True)
class Decision:
    facts: list[Fact] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)

    def reply(self, ticket: int, result: object) -> None:
        self.effects.append(Reply(ticket, result))
