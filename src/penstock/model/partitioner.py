"""Which partition a keyed record goes to: the same one as with Kafka's own Java client, so that both can be mixed.

Compiled by mypyc where it can be; the same file runs uncompiled.
"""

from typing import Final

from mypy_extensions import i64

_MULTIPLIER: Final[i64] = 0x5BD1E995
_SEED: Final[i64] = 0x9747B28C
_MASK: Final[i64] = 0xFFFF_FFFF  # no product of two such numbers here overflows 63 bits: the multiplier has 31


def murmur2(data: bytes) -> i64:
    """Austin Appleby's 32-bit MurmurHash2 with Kafka's seed, as an unsigned number."""
    length: i64 = len(data)
    value: i64 = _SEED ^ length
    at: i64 = 0
    while at + 4 <= length:
        block = i64(data[at]) | i64(data[at + 1]) << 8 | i64(data[at + 2]) << 16 | i64(data[at + 3]) << 24
        block = block * _MULTIPLIER & _MASK
        block = (block ^ block >> 24) * _MULTIPLIER & _MASK
        value = (value * _MULTIPLIER & _MASK) ^ block
        at += 4
    if at < length:
        shift: i64 = 0
        while at < length:
            value ^= i64(data[at]) << shift
            shift += 8
            at += 1
        value = value * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15


def partition_for_key(key: bytes, partitions: i64) -> i64:
    """Java makes the hash positive by dropping its sign bit, not by taking the absolute value."""
    return (murmur2(key) & 0x7FFF_FFFF) % partitions
