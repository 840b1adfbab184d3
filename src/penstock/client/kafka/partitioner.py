"""Which partition a keyed record goes to: the same one as with Kafka's own Java client, so that both can be mixed."""

_MULTIPLIER = 0x5BD1E995
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Austin Appleby's 32-bit MurmurHash2 with Kafka's seed, as an unsigned number."""
    length = len(data)
    value = _SEED ^ length
    for start in range(0, length - 3, 4):
        block = int.from_bytes(data[start : start + 4], "little") * _MULTIPLIER & _MASK
        block = (block ^ block >> 24) * _MULTIPLIER & _MASK
        value = (value * _MULTIPLIER & _MASK) ^ block
    tail = data[length & ~3 :]
    if tail:
        value = (value ^ int.from_bytes(tail, "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15


def partition_for_key(key: bytes, partitions: int) -> int:
    """Java makes the hash positive by dropping its sign bit, not by taking the absolute value."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
