"""The index of transactions against a log that is read anew for every question; writes are under way, and some fail."""

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.committed import AbortedBatches
from penstock.log.transactions import NEVER, Aborted, Transactions
from penstock.model.batch import TRANSACTIONAL, BatchHeader, encode_batch, read_header
from penstock.model.record import Record


class Entry(NamedTuple):
    producer_id: int
    commit: bool | None  # None: a batch


def header_of(producer_id: int, offset: int) -> BatchHeader:
    batch = encode_batch(
        [Record(offset, 0, None, b"")],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        attributes=TRANSACTIONAL,
    )
    return read_header(batch)


class Naive:
    """A list of what was written, each entry at its offset."""

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.durable_end = self.pruned_to = 0

    def read(self) -> tuple[dict[int, int], list[int], list[Aborted]]:
        """First offsets of what is open at the tail, of all that no durable marker ended, and what was aborted."""
        running: dict[int, int] = {}
        unended: list[int] = []
        aborted: list[Aborted] = []
        for offset, (producer_id, commit) in enumerate(self.log):
            if commit is None:
                running.setdefault(producer_id, offset)
            elif producer_id in running:
                first = running.pop(producer_id)
                if offset >= self.durable_end:
                    unended.append(first)
                elif not commit and offset >= self.pruned_to:
                    aborted.append(Aborted(producer_id, first, offset))
        return dict(running), [*unended, *running.values()], aborted


def check(index: Transactions, naive: Naive) -> None:
    running, unended, aborted = naive.read()
    assert {producer_id: each.first_offset for producer_id, each in index.open.items()} == running
    assert index.first_open == min(unended, default=NEVER)
    assert index.aborted_count == len(aborted)
    end = len(naive.log)
    for start in range(end + 1):
        for stop in {start + 1, (start + end) // 2, end}:
            expected = [a for a in aborted if a.last_offset >= start and a.first_offset < stop]
            found = index.aborted_within(start, stop)
            assert found == sorted(expected, key=lambda a: a.first_offset)
            if expected:
                assert index.touch(start, stop)
    left_out = AbortedBatches(index.aborted_within(0, end))
    for offset, (producer_id, commit) in enumerate(naive.log):
        if commit is None:
            mine = any(a.producer_id == producer_id and a.first_offset <= offset < a.last_offset for a in aborted)
            assert (header_of(producer_id, offset) in left_out) == mine


steps = st.one_of(
    st.tuples(st.just("batch"), st.integers(1, 4)),
    st.tuples(st.just("end"), st.integers(1, 4), st.booleans()),
    st.tuples(st.just("durable"), st.integers(1, 4)),
    st.tuples(st.just("failed")),
    st.tuples(st.just("prune"), st.integers(0, 5)),
    st.tuples(st.just("again")),
)


@settings(deadline=None)
@given(st.lists(steps, max_size=40))
def test_the_index_knows_what_the_log_tells(plan: list[tuple]) -> None:
    index, naive = Transactions(), Naive()
    for name, *arguments in plan:
        offset = len(naive.log)
        if name == "batch":
            index.note(header_of(arguments[0], offset), offset, 0)
            naive.log.append(Entry(arguments[0], None))
        elif name == "end":
            index.end(arguments[0], arguments[1], offset)
            naive.log.append(Entry(*arguments))
        elif name == "durable":
            naive.durable_end = min(offset, naive.durable_end + arguments[0])
            index.settle(naive.durable_end)
        elif name == "failed":
            del naive.log[naive.durable_end :]
            index.rewind(naive.durable_end)
        elif name == "prune":
            naive.pruned_to = max(naive.pruned_to, naive.durable_end - arguments[0])
            index.prune(naive.pruned_to)
        elif naive.durable_end == offset:
            index, before = Transactions(), index
            index.restore(before.snapshot())
        check(index, naive)
