"""What happened in consume-transform-produce loops, and what is wrong with it.

A worker takes inputs, and in one transaction writes `outputs_of` each of them and hands in its offset. It notes an
attempt before it writes anything, and its outcome when it knows it. In the end a reader of what is committed reads all
outputs. Then every input is the input of exactly one attempt that counts, and that attempt is there as a whole:

    lost            an input that the group has passed, or whose attempt was reported committed, and no output of it
    torn            some outputs of an attempt are there and others are not, or they are and its offset is not
    aborted         an output of an attempt that was reported aborted is there
    doubled         outputs of one input are there twice: from two attempts, or one record twice
    disordered      outputs of one input partition are not in the order of their inputs
    invented        an output that nobody attempted to write
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

COMMITTED, ABORTED = "committed", "aborted"  # what a worker knows for sure; without either, nobody does


class Input(NamedTuple):
    partition: int
    offset: int


class Output(NamedTuple):
    """One record as it is written: by which attempt, for which input, and which of its copies."""

    attempt: str
    input: Input
    copy: int


class Seen(NamedTuple):
    output: Output
    place: tuple[str, int, int]  # topic, partition, offset


class Fault(NamedTuple):
    kind: str
    what: str


@dataclass
class History:
    copies: int  # outputs of one input
    inputs: dict[int, int] = field(default_factory=dict)  # partition -> end offset, all of them from 0 on
    attempts: dict[str, list[Input]] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)  # in the order of each partition
    committed: dict[int, int] = field(default_factory=dict)  # the group's offsets in the end

    def outputs_of(self, attempt: str) -> Iterator[Output]:
        for taken in self.attempts[attempt]:
            for copy in range(self.copies):
                yield Output(attempt, taken, copy)


def check(history: History) -> list[Fault]:
    return [
        *_invented(history),
        *_aborted(history),
        *_torn(history),
        *_doubled(history),
        *_lost(history),
        *_disordered(history),
    ]


def _visible(history: History) -> Counter[Output]:
    return Counter(seen.output for seen in history.seen)


def _invented(history: History) -> Iterator[Fault]:
    attempted = {output for attempt in history.attempts for output in history.outputs_of(attempt)}
    for seen in history.seen:
        if seen.output not in attempted:
            yield Fault("invented", f"{seen.output} at {seen.place}")


def _aborted(history: History) -> Iterator[Fault]:
    for seen in history.seen:
        if history.outcomes.get(seen.output.attempt) == ABORTED:
            yield Fault("aborted", f"{seen.output} at {seen.place}")


def _torn(history: History) -> Iterator[Fault]:
    visible = _visible(history)
    for attempt, inputs in history.attempts.items():
        there = [output for output in history.outputs_of(attempt) if visible[output]]
        missing = [output for output in history.outputs_of(attempt) if not visible[output]]
        if there and missing:
            yield Fault("torn", f"attempt {attempt}: {len(there)} outputs are there, {missing[:3]} ... are not")
        if there:
            behind = [taken for taken in inputs if history.committed.get(taken.partition, 0) <= taken.offset]
            if behind:
                yield Fault("torn", f"attempt {attempt}: its outputs are there, the offsets of {behind[:3]} are not")


def _doubled(history: History) -> Iterator[Fault]:
    for output, times in _visible(history).items():
        if times > 1:
            yield Fault("doubled", f"{output} is there {times} times")
    attempts: dict[Input, set[str]] = defaultdict(set)
    for seen in history.seen:
        attempts[seen.output.input].add(seen.output.attempt)
    for taken, by in attempts.items():
        if len(by) > 1:
            yield Fault("doubled", f"{taken} counts in the attempts {sorted(by)}")


def _lost(history: History) -> Iterator[Fault]:
    visible = _visible(history)
    answered = {output.input for output in visible}
    for partition, end in history.inputs.items():
        for offset in range(min(end, history.committed.get(partition, 0))):
            if Input(partition, offset) not in answered:
                yield Fault("lost", f"input {partition}:{offset} was passed, and nothing of it is there")
    for attempt, outcome in history.outcomes.items():
        if outcome == COMMITTED:
            missing = [output for output in history.outputs_of(attempt) if not visible[output]]
            if missing:
                yield Fault("lost", f"attempt {attempt} was reported committed; {missing[:3]} ... are not there")


def _disordered(history: History) -> Iterator[Fault]:
    last: dict[tuple[str, int, int], int] = {}
    for seen in sorted(history.seen, key=lambda seen: seen.place):
        topic, partition, _ = seen.place
        lane = (topic, partition, seen.output.input.partition)
        if seen.output.input.offset < last.get(lane, -1):
            yield Fault("disordered", f"{seen.output} at {seen.place} comes after input offset {last[lane]}")
        last[lane] = max(last.get(lane, -1), seen.output.input.offset)


def kinds(faults: Iterable[Fault]) -> set[str]:
    return {fault.kind for fault in faults}
