"""What other people's code writes we read, and what we write they read: kafka-python, aiokafka, and the C libraries."""

import gzip
import io
from collections.abc import Callable
from typing import Any

import lz4.frame
import pytest
import zstandard
from aiokafka.record import default_records as aiokafka_records
from batches import CODECS, base_offsets, record_lists, rich_records
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import default_records as kafka_python_records
from kio.records.readers import read_batch as kio_read_batch

from penstock.model.batch import check_batch, decode_batch, encode_batch, read_header
from penstock.model.compression import compress, decompress
from penstock.model.record import Record

ORACLES = {"kafka-python": kafka_python_records, "aiokafka": aiokafka_records}
# aiokafka's builder takes a first timestamp of -1 for none at all.
produced = record_lists(base=st.just(0), times_ms=st.integers(0, 2**45))


def written_by(oracle: Any, records: list[Record], codec: int) -> bytes:
    builder = oracle.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=True,
        producer_id=77,
        producer_epoch=3,
        base_sequence=500,
        batch_size=1 << 30,
    )
    for record in records:
        assert builder.append(
            record.offset,
            timestamp=record.timestamp_ms,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
        )
    return bytes(builder.build())


def read_by(oracle: Any, data: bytes) -> list[Record]:
    opened = oracle.DefaultRecordBatch(data)
    assert opened.validate_crc()
    return [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in opened]


@pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES.keys())
@given(records=produced, codec=st.sampled_from(CODECS))
def test_we_read_what_a_client_writes(oracle: Any, records: list[Record], codec: int) -> None:
    data = written_by(oracle, records, codec)
    header = check_batch(data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 500)
    assert header.is_transactional
    assert decode_batch(data) == records


@pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES.keys())
@given(records=record_lists(base=base_offsets), codec=st.sampled_from(CODECS))
def test_a_client_reads_what_we_write(oracle: Any, records: list[Record], codec: int) -> None:
    assert read_by(oracle, bytes(encode_batch(records, compression=codec))) == records


@given(produced)
def test_uncompressed_bytes_are_the_same_as_a_clients(records: list[Record]) -> None:
    ours = encode_batch(records, producer_id=77, producer_epoch=3, base_sequence=500, attributes=0x10, leader_epoch=-1)
    theirs = bytearray(written_by(kafka_python_records, records, 0))
    theirs[12:16] = ours[12:16]  # the leader epoch is the broker's to set
    assert ours == theirs


def test_kio_agrees_on_a_batch_of_every_shape() -> None:
    made = bytes(encode_batch(rich_records()))
    theirs, size = kio_read_batch(made, 0)
    assert size == len(made)
    assert [(r.offset, r.key, r.value) for r in theirs.records] == [(r.offset, r.key, r.value) for r in rich_records()]
    header = read_header(made)
    assert (theirs.crc, theirs.last_offset_delta, theirs.max_timestamp) == (
        header.crc,
        header.last_offset_delta,
        header.max_timestamp_ms,
    )


def streamed_zstd(data: bytes) -> bytes:
    """As Java writes it: no content size in the frame's header."""
    out = io.BytesIO()
    with zstandard.ZstdCompressor(write_content_size=False).stream_writer(out, closefd=False) as writer:
        writer.write(data)
    return out.getvalue()


FOREIGN: list[tuple[int, Callable[[bytes], bytes]]] = [
    (1, gzip.compress),
    (1, lambda data: gzip.compress(data[:10]) + gzip.compress(data[10:])),
    (3, lambda data: lz4.frame.compress(data, block_linked=False)),
    (3, lambda data: lz4.frame.compress(data, block_linked=True, content_checksum=True, store_size=True)),
    (4, zstandard.compress),
    (4, streamed_zstd),
]


@given(st.binary(max_size=2000), st.integers(1, 200), st.sampled_from(FOREIGN))
def test_foreign_compressors_are_understood(
    data: bytes, times: int, foreign: tuple[int, Callable[[bytes], bytes]]
) -> None:
    codec, squeeze = foreign
    assert decompress(codec, squeeze(data * times), 1 << 20) == data * times


@given(st.binary(max_size=2000), st.integers(1, 200))
def test_foreign_decompressors_understand_us(data: bytes, times: int) -> None:
    plain = data * times
    assert gzip.decompress(compress(1, plain)) == plain
    assert lz4.frame.decompress(compress(3, plain)) == plain
    assert zstandard.ZstdDecompressor().decompressobj().decompress(compress(4, plain)) == plain


def test_lz4_blocks_are_independent_because_java_refuses_others() -> None:
    assert not lz4.frame.get_frame_info(compress(3, b"abc" * 100_000))["block_linked"]
