"""What the tests of this room share: records as hypothesis draws them, and a few made by hand."""

from hypothesis import strategies as st

from penstock.model.record import Record

CODECS = (0, 1, 2, 3, 4)
NOON_MS = 1_700_000_000_000

fields = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=20), fields), max_size=4).map(tuple)
timestamps_ms = st.integers(-1, 2**45)
base_offsets = st.just(0) | st.integers(0, 2**62)


@st.composite
def record_lists(
    draw: st.DrawFn,
    base: st.SearchStrategy[int] = base_offsets,
    times_ms: st.SearchStrategy[int] = timestamps_ms,
) -> list[Record]:
    """Records whose offsets rise, with the holes that compaction leaves."""
    offset = draw(base)
    records = []
    for _ in range(draw(st.integers(1, 12))):
        records.append(Record(offset, draw(times_ms), draw(fields), draw(fields), draw(headers)))
        offset += draw(st.integers(1, 1000) if draw(st.booleans()) else st.just(1))
    return records


def plain_records(count: int, offset: int = 0, value: bytes = b"value") -> list[Record]:
    return [Record(offset + i, NOON_MS + i, b"key %d" % i, value) for i in range(count)]


def rich_records() -> list[Record]:
    """Every shape a record can have, in one batch."""
    return [
        Record(40, NOON_MS, b"key", b"value"),
        Record(41, NOON_MS - 5_000, None, b"earlier than the first"),
        Record(43, NOON_MS + 70_000, b"tombstone", None),
        Record(44, NOON_MS, b"", b"", (("trace", b"\x00\x01"), ("empty", b""), ("null", None), ("ключ", b"x"))),
        Record(90, NOON_MS, None, bytes(range(256)) * 3, (("h" * 200, b"long" * 100),)),
    ]
