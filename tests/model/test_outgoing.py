"""From messages to records: nothing is lost on the way, and no record is larger than was said."""

import pytest
from batches import fields, headers
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.batch import HEADER_BYTES, encode_batch
from penstock.model.message import Outgoing
from penstock.model.outgoing import by_partition, number_from, only_partition, records_of, size_bound
from penstock.model.partitioner import partition_for_key
from penstock.model.record import Record

NOW_MS = 1_700_000_000_000
messages = st.lists(
    st.builds(Outgoing, fields, fields, headers, st.integers(-1, 2**62), st.integers(-1, 3)), min_size=1, max_size=20
)


@given(messages)
def test_records_are_the_messages_in_order(given_messages: list[Outgoing]) -> None:
    records, size_bytes = records_of(given_messages, NOW_MS)
    assert records == [
        Record(i, NOW_MS if m.timestamp_ms < 0 else m.timestamp_ms, m.key, m.value, m.headers)
        for i, m in enumerate(given_messages)
    ]
    assert size_bytes == sum(map(size_bound, records))
    assert len(encode_batch(records)) <= HEADER_BYTES + size_bytes


@given(messages, st.integers(1, 4), st.integers(0, 3))
def test_partitions_are_chosen_alike(given_messages: list[Outgoing], count: int, keyless: int) -> None:
    def chosen(message: Outgoing) -> int:
        if message.partition >= 0:
            return message.partition
        return keyless % count if message.key is None else partition_for_key(message.key, count)

    expected: dict[int, list[int]] = {}
    for position, message in enumerate(given_messages):
        expected.setdefault(chosen(message), []).append(position)
    assert by_partition(given_messages, count, keyless % count) == expected
    only = only_partition(given_messages, count, keyless % count)
    assert only == (next(iter(expected)) if len(expected) == 1 else -1)


def test_places_are_given_anew() -> None:
    records, _ = records_of([Outgoing(None, b"x")] * 3, NOW_MS)
    number_from(records, 7)
    assert [record.offset for record in records] == [7, 8, 9]


@pytest.mark.parametrize("wrong", [Outgoing(None, b"x", (("\ud800", b""),)), Outgoing(None, b"x", ((7, b""),))])
def test_a_header_without_a_proper_name_is_refused(wrong: Outgoing) -> None:
    with pytest.raises((UnicodeEncodeError, TypeError, AttributeError)):
        records_of([wrong], NOW_MS)
