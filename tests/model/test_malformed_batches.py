"""Whatever arrives, a batch is opened, or CorruptBatch is raised: nothing else, and never for much memory."""

import contextlib
import random
import struct
import tracemalloc

import crc32c
import lz4.frame
import pytest
import zstandard
from batches import CODECS, plain_records, record_lists, rich_records
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import batch
from penstock.model.batch import check_batch, decode_batch, encode_batch, read_header, walk, whole_batches
from penstock.model.compression import compress, decompress
from penstock.model.errors import CorruptBatch
from penstock.model.record import Record


def with_records_section(section: bytes, count: int, last_offset_delta: int | None = None, codec: int = 0) -> bytes:
    """A batch with a right checksum around any bytes at all."""
    made = encode_batch([], base_offset=0, last_offset_delta=max(count - 1, 0))
    made += section
    struct.pack_into(">i", made, 8, len(made) - 12)
    struct.pack_into(">h", made, 21, codec)
    struct.pack_into(">i", made, 23, max(count - 1, 0) if last_offset_delta is None else last_offset_delta)
    struct.pack_into(">i", made, 57, count)
    struct.pack_into(">I", made, 17, crc32c.crc32c(memoryview(made)[21:]))
    return bytes(made)


def open_or_refuse(buf: bytes | bytearray) -> None:
    """Everything that reads, on bytes that may be anything; all but CorruptBatch is the test's failure."""
    for read in (read_header, check_batch, decode_batch, lambda b: whole_batches(b, 0, 1 << 62, False)):
        with contextlib.suppress(CorruptBatch):
            read(buf)
    walk(buf)


@pytest.mark.parametrize("codec", CODECS)
def test_batch_cut_anywhere_is_corrupt(codec: int) -> None:
    whole = bytes(encode_batch(rich_records(), compression=codec))
    for size in range(len(whole)):
        for buf in (whole[:size], bytearray(whole[:size])):
            with pytest.raises(CorruptBatch):
                check_batch(buf)
            with pytest.raises(CorruptBatch):
                decode_batch(buf)


@pytest.mark.parametrize("codec", CODECS)
def test_records_section_cut_anywhere_is_corrupt(codec: int) -> None:
    whole = encode_batch(rich_records(), compression=codec)
    section = bytes(whole[61:])
    for size in range(len(section)):
        cut = with_records_section(section[:size], len(rich_records()), 50, codec)
        with pytest.raises(CorruptBatch):
            decode_batch(cut)


def test_records_section_with_a_tail_is_corrupt() -> None:
    section = bytes(encode_batch(rich_records())[61:])
    decode_batch(with_records_section(section, 5, 50))
    with pytest.raises(CorruptBatch, match="longer than its records"):
        decode_batch(with_records_section(section + b"\x00" * 9, 5, 50))
    with pytest.raises(CorruptBatch, match="longer than its records"):
        decode_batch(with_records_section(section, 4, 50))


@pytest.mark.parametrize("codec", CODECS)
def test_any_flipped_bit_behind_the_checksum_is_found(codec: int) -> None:
    whole = encode_batch(rich_records(), compression=codec)
    for position in range(16, len(whole)):
        whole[position] ^= 1 << (position % 8)
        with pytest.raises(CorruptBatch):
            check_batch(whole)
        whole[position] ^= 1 << (position % 8)
    check_batch(whole)


@pytest.mark.parametrize("codec", CODECS)
def test_mutations_raise_nothing_but_corrupt_batch(codec: int) -> None:
    rng = random.Random(codec)
    whole = bytes(encode_batch(rich_records(), compression=codec))
    for _ in range(3000):
        mutant = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            mutant[rng.randrange(len(mutant))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        if rng.random() < 0.3:
            start = rng.randrange(len(mutant))
            del mutant[start : start + rng.randint(1, 20)]
        if len(mutant) > 61 and rng.random() < 0.7:
            struct.pack_into(">i", mutant, 8, len(mutant) - 12)
        open_or_refuse(mutant)
        open_or_refuse(bytes(mutant))


@given(st.binary(max_size=400), st.integers(0, 60), st.sampled_from(CODECS))
def test_random_sections_raise_nothing_but_corrupt_batch(section: bytes, count: int, codec: int) -> None:
    open_or_refuse(with_records_section(section, count, codec=codec))
    open_or_refuse(section)


@given(record_lists(), st.data())
def test_random_splices_raise_nothing_but_corrupt_batch(records: list[Record], data: st.DataObject) -> None:
    section = bytearray(encode_batch(records)[61:])
    at = data.draw(st.integers(0, len(section)))
    section[at : at + data.draw(st.integers(0, 5))] = data.draw(st.binary(max_size=12))
    open_or_refuse(with_records_section(bytes(section), len(records), 20_000))


HEADER_DAMAGE = {
    "magic 1": (16, b"\x01"),
    "length 48": (8, struct.pack(">i", 48)),
    "negative length": (8, struct.pack(">i", -1)),
    "negative base offset": (0, struct.pack(">q", -1)),
    "base offset near the end of numbers": (0, struct.pack(">q", 2**63 - 2)),
    "negative last offset": (23, struct.pack(">i", -1)),
    "negative count": (57, struct.pack(">i", -1)),
    "more records than offsets": (57, struct.pack(">i", 6)),
    "unknown codec": (21, struct.pack(">h", 5)),
}


@pytest.mark.parametrize(("position", "damage"), HEADER_DAMAGE.values(), ids=HEADER_DAMAGE.keys())
def test_impossible_headers_are_corrupt(position: int, damage: bytes) -> None:
    made = encode_batch(plain_records(5))
    made[position : position + len(damage)] = damage
    with pytest.raises(CorruptBatch):
        read_header(made)


def test_more_records_than_the_bytes_could_hold_are_corrupt_before_any_is_read() -> None:
    made = encode_batch(plain_records(3), last_offset_delta=2**31 - 1)
    struct.pack_into(">i", made, 57, 2**31 - 1)
    with pytest.raises(CorruptBatch, match="cannot hold"):
        read_header(made)


RECORD_DAMAGE = {
    "length of six bytes": b"\xff\xff\xff\xff\xff\x01" + bytes(20),
    "length beyond 32 bits": b"\xff\xff\xff\xff\x7f" + bytes(20),
    "negative length": b"\x01" + bytes(20),
    "length beyond the batch": b"\x7e" + bytes(20),
    "timestamp of eleven bytes": b"\x28\x00" + b"\xff" * 10 + b"\x01" + bytes(20),
    "timestamp beyond 64 bits": b"\x28\x00" + b"\xff" * 9 + b"\x02" + bytes(20),
    "key of length -2": b"\x0c\x00\x00\x00\x03\x01\x00",
    "value of length -2": b"\x0c\x00\x00\x00\x01\x03\x00",
    "key beyond the record": b"\x0c\x00\x00\x00\x7e\x01\x00",
    "value beyond the record": b"\x0c\x00\x00\x00\x01\x7e\x00",
    "negative header count": b"\x0c\x00\x00\x00\x01\x01\x01",
    "header count beyond the record": b"\x14\x00\x00\x00\x01\x01\xfe\xff\xff\xff\x0f",
    "header key of length -1": b"\x10\x00\x00\x00\x01\x01\x02\x01\x01",
    "header key not UTF-8": b"\x12\x00\x00\x00\x01\x01\x02\x02\xff\x01",
    "header value of length -2": b"\x10\x00\x00\x00\x01\x01\x02\x00\x03",
    "offset before the batch": b"\x0c\x00\x00\x01\x01\x01\x00",
    "offset after the batch": b"\x0c\x00\x00\x02\x01\x01\x00",
    "record longer than its fields": b"\x0e\x00\x00\x00\x01\x01\x00\x00",
}


@pytest.mark.parametrize("section", RECORD_DAMAGE.values(), ids=RECORD_DAMAGE.keys())
def test_impossible_records_are_corrupt(section: bytes) -> None:
    assert decode_batch(with_records_section(b"\x0c\x00\x00\x00\x01\x01\x00", 1)) == [Record(0, -1, None, None)]
    with pytest.raises(CorruptBatch):
        decode_batch(with_records_section(section, 1))


def test_two_records_of_one_offset_are_corrupt() -> None:
    with pytest.raises(CorruptBatch, match="do not rise"):
        decode_batch(with_records_section(b"\x0c\x00\x00\x00\x01\x01\x00" * 2, 2))


# -- bombs --------------------------------------------------------------------------------------------------

BOMB_BYTES = 256 << 20


def lz4_bomb() -> bytes:
    return lz4.frame.compress(bytes(BOMB_BYTES), block_linked=False, block_size=lz4.frame.BLOCKSIZE_MAX4MB)


def zstd_bomb() -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(bytes(BOMB_BYTES))


BOMBS = {
    "gzip": (1, lambda: compress(1, bytes(BOMB_BYTES))),
    "snappy in many blocks": (2, lambda: compress(2, bytes(BOMB_BYTES))),
    "snappy that only claims it": (2, lambda: b"\x80\x80\x80\x80\x0f" + b"\x00a"),
    "lz4": (3, lz4_bomb),
    "zstd": (4, zstd_bomb),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_ends_at_the_bound(name: str) -> None:
    codec, make = BOMBS[name]
    bomb = make()
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch):
            decompress(codec, bomb, 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
    with pytest.raises(CorruptBatch):
        decode_batch(with_records_section(bomb, 100, codec=codec))


def test_bomb_of_tiny_records_ends_at_the_bound() -> None:
    count = int(batch.MAX_OPENED_RECORDS) + 1
    section = compress(4, b"\x0c\x00\x00\x00\x01\x01\x00" * 1000)
    with pytest.raises(CorruptBatch, match="at most"):
        decode_batch(with_records_section(section, count, codec=4))


@pytest.mark.parametrize("codec", CODECS[1:])
def test_output_of_exactly_the_bound_is_allowed(codec: int) -> None:
    for size in (0, 1, 1000, 300_000, 1 << 20):
        packed = compress(codec, bytes(size))
        assert len(decompress(codec, packed, max(size, 1))) == size
        if size > 1:
            with pytest.raises(CorruptBatch):
                decompress(codec, packed, size - 1)


def test_unknown_codecs_are_named() -> None:
    with pytest.raises(CorruptBatch, match="codec 9"):
        decompress(9, b"", 10)
    with pytest.raises(ValueError, match="codec 9"):
        compress(9, b"")


def test_snappy_is_read_raw_and_framed() -> None:
    framed = compress(2, b"hello " * 20_000)
    assert framed.startswith(b"\x82SNAPPY\x00")
    assert decompress(2, framed, 1 << 20) == b"hello " * 20_000
    assert decompress(2, b"\x05\x10hello", 100) == b"hello"
    for cut in range(9, len(framed), 7):
        try:
            decompress(2, framed[:cut], 1 << 20)
        except CorruptBatch:
            continue
