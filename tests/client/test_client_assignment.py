"""Who reads what: the same answers as every other Kafka client gives."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.kafka.assignment import (
    ASSIGNORS,
    assign_range,
    assign_round_robin,
    decode_assignment,
    encode_assignment,
)


def test_range_gives_the_first_members_the_rest() -> None:
    shares = assign_range({"b": ["t"], "a": ["t"], "c": ["t"]}, {"t": 7})
    assert shares == {"a": {"t": [0, 1, 2]}, "b": {"t": [3, 4]}, "c": {"t": [5, 6]}}


def test_round_robin_deals_partitions_out_across_topics() -> None:
    shares = assign_round_robin({"a": ["t", "u"], "b": ["t", "u"]}, {"t": 3, "u": 3})
    assert shares == {"a": {"t": [0, 2], "u": [1]}, "b": {"t": [1], "u": [0, 2]}}


def test_round_robin_skips_members_that_do_not_read_the_topic() -> None:
    shares = assign_round_robin({"a": ["t"], "b": ["u"]}, {"t": 2, "u": 2})
    assert shares == {"a": {"t": [0, 1]}, "b": {"u": [0, 1]}}


def test_more_members_than_partitions_leaves_some_idle() -> None:
    assert assign_range({"a": ["t"], "b": ["t"]}, {"t": 1}) == {"a": {"t": [0]}, "b": {}}


def test_a_topic_that_does_not_exist_is_nobodys() -> None:
    for assign in ASSIGNORS.values():
        assert assign({"a": ["gone"]}, {}) == {"a": {}}


@pytest.mark.parametrize("name", ASSIGNORS)
@given(
    subscriptions=st.dictionaries(
        st.sampled_from("abcde"), st.lists(st.sampled_from("tuv"), min_size=1, unique=True), min_size=1
    ),
    partitions=st.dictionaries(st.sampled_from("tuv"), st.integers(1, 9)),
)
def test_every_partition_has_exactly_one_reader_who_wants_it(
    name: str, subscriptions: dict[str, list[str]], partitions: dict[str, int]
) -> None:
    shares = ASSIGNORS[name](subscriptions, partitions)
    assert set(shares) == set(subscriptions)
    given_out = Counter((topic, index) for share in shares.values() for topic, own in share.items() for index in own)
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    assert given_out == Counter((topic, index) for topic in wanted for index in range(partitions.get(topic, 0)))
    assert all(topic in subscriptions[member] for member, share in shares.items() for topic in share)


def test_an_assignment_is_read_as_it_was_written_and_nothing_means_nothing() -> None:
    assignment = {"orders": [0, 2], "payments": [1]}
    assert decode_assignment(encode_assignment(assignment)) == assignment
    assert decode_assignment(b"") == {}
    with pytest.raises(ValueError):
        decode_assignment(b"\x00\x00\x7f\xff\xff\xff")
