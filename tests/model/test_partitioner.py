"""Keys land where Kafka's Java client would put them."""

from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from penstock.model.partitioner import murmur2, partition_for_key

# From the tests of Kafka's own Utils.murmur2, there as signed numbers.
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_hashes_are_kafkas() -> None:
    for key, signed in VECTORS.items():
        assert murmur2(key) == signed & 0xFFFFFFFF


@given(st.binary(max_size=64))
def test_any_key_hashes_as_in_another_client(key: bytes) -> None:
    assert murmur2(key) == kafka_python_murmur2(key) & 0xFFFFFFFF


@given(st.binary(max_size=64), st.integers(1, 1000))
def test_every_key_has_a_partition(key: bytes, partitions: int) -> None:
    assert 0 <= partition_for_key(key, partitions) < partitions


def test_a_negative_hash_loses_its_sign_bit_and_not_its_sign() -> None:
    assert partition_for_key(b"foobar", 12) == (-790332482 & 0x7FFFFFFF) % 12
