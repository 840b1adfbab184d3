"""What a batch was made of, and what the sink can be told: read from files and options, without Spark running."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from penstock.pipeline.errors import InvalidOption, SchemaMismatch
from penstock.pipeline.marks import CheckpointBroken, Ends, read_ends, read_query_id
from penstock.pipeline.sink_options import check_columns, sink_options

NOTES = '{"batchWatermarkMs":0,"batchTimestampMs":%d,"conf":{}}'


def checkpoint(home: Path, batch: int, *sources: Any, planned_ms: int = 1) -> str:
    lines = ["v1", NOTES % planned_ms, *("-" if source is None else json.dumps(source) for source in sources)]
    (home / "offsets").mkdir(exist_ok=True)
    (home / "offsets" / str(batch)).write_text("\n".join(lines))
    return str(home)


def test_mark_tells_ends_and_nothing_else(tmp_path: Path) -> None:
    first = read_ends(checkpoint(tmp_path, 3, {"orders": {"0": 100, "1": 97}}, planned_ms=1), 3)
    again = read_ends(checkpoint(tmp_path, 3, {"orders": {"1": 97, "0": 100}}, planned_ms=2), 3)
    other = read_ends(checkpoint(tmp_path, 3, {"orders": {"0": 101, "1": 97}}), 3)
    assert first.mark == again.mark
    assert first.mark != other.mark
    assert '{"orders":{"0":100,"1":97}}' in first.mark


def test_mark_stays_short_and_sharp() -> None:
    one = Ends(({f"topic-{n}": {"0": n} for n in range(1000)},))
    other = Ends(({**one.sources[0], "topic-999": {"0": 0}},))
    assert len(one.mark) < 400
    assert one.mark != other.mark


def test_progress_is_that_of_our_sources(tmp_path: Path) -> None:
    ends = read_ends(
        checkpoint(tmp_path, 0, {"orders": {"0": 9, "1": 4}}, {"logOffset": 3}, 17, None, {"orders": {"1": 2}}), 0
    )
    assert ends.topics == [("orders", 0, 9), ("orders", 1, 2)]


def test_files_that_a_batch_was_made_of_count(tmp_path: Path) -> None:
    def mark(name: str, kind: str) -> str:
        folder = tmp_path / "sources" / "0"
        folder.mkdir(parents=True, exist_ok=True)
        older = json.dumps({"path": "file:///older", "timestamp": 1, "batchId": 8})
        (folder / f"9{kind}").write_text(
            "v1\n" + older + "\n" + json.dumps({"path": name, "timestamp": 5, "batchId": 9})
        )
        return read_ends(checkpoint(tmp_path, 2, {"logOffset": 9}), 2).mark

    assert mark("file:///a", "") != mark("file:///b", "")
    plain = mark("file:///a", "")
    (tmp_path / "sources" / "0" / "9").unlink()
    assert mark("file:///a", ".compact") == plain


@pytest.mark.parametrize("place", ["{}", "file:{}", "file://{}"])
def test_checkpoint_may_be_written_as_an_address(tmp_path: Path, place: str) -> None:
    checkpoint(tmp_path, 0, {"orders": {"0": 1}})
    (tmp_path / "metadata").write_text('{"id":"4711"}')
    assert read_ends(place.format(tmp_path), 0).topics == [("orders", 0, 1)]
    assert read_query_id(place.format(tmp_path)) == "4711"


def test_what_is_wrong_with_a_checkpoint_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="checkpointLocation"):
        read_ends(None, 0)
    with pytest.raises(CheckpointBroken, match="offsets/0 is not there"):
        read_ends(str(tmp_path), 0)
    checkpoint(tmp_path, 0, {})
    (tmp_path / "offsets" / "0").write_text("v7\n{}\n{}")
    with pytest.raises(CheckpointBroken, match="format 'v7'"):
        read_ends(str(tmp_path), 0)
    (tmp_path / "offsets" / "0").write_text("v1\n{}\n{torn")
    with pytest.raises(CheckpointBroken, match="damaged"):
        read_ends(str(tmp_path), 0)
    assert read_query_id(str(tmp_path)) is None
    assert read_query_id(None) is None


# -- options and columns ----------------------------------------------------------------------------------------


def test_options_have_names_that_people_write() -> None:
    options = sink_options(
        {"SERVER": "127.0.0.1:7070", "topic": "t", "compression": "ZSTD", "checkpointlocation": "/c"}, stream=True
    )
    assert (options.topic, options.compression, options.checkpoint) == ("t", 4, "/c")
    assert sink_options({"server": "h:1", "path": "t"}, stream=False).topic == "t"


@pytest.mark.parametrize(
    ("given", "stream", "said"),
    [
        ({}, True, "option server is missing"),
        ({"server": "h:1", "topics": "t"}, True, "did you mean topic"),
        ({"server": "h:1", "compression": "rar"}, True, "'rar'; it must be one of none, gzip"),
        ({"server": "h:1", "epoch": "1"}, True, "batch writes"),
        ({"server": "h:1", "epoch": "1"}, False, "needs an application"),
        ({"server": "h:1", "group": "g"}, False, "for streams"),
        ({"server": "h:1", "maxBatchBytes": "many"}, True, "maxBatchBytes is 'many'"),
    ],
)
def test_wrong_options_are_named(given: dict[str, str], stream: bool, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        sink_options(given, stream=stream)


def columns(**kinds: str) -> StructType:
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        DataType,
        DoubleType,
        IntegerType,
        LongType,
        StringType,
        StructField,
        TimestampType,
    )

    types: dict[str, DataType] = {
        "string": StringType(),
        "binary": BinaryType(),
        "int": IntegerType(),
        "bigint": LongType(),
        "double": DoubleType(),
        "timestamp": TimestampType(),
        "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
    }
    return StructType([StructField(name, types[kind]) for name, kind in kinds.items()])


def test_columns_that_records_have() -> None:
    check_columns(columns(value="string"), "t")
    check_columns(
        columns(
            key="binary", value="binary", topic="string", partition="int", timestamp="timestamp", headers="headers"
        ),
        None,
    )


@pytest.mark.parametrize(
    ("given", "topic", "said"),
    [
        ({"value": "string", "price": "double", "id": "bigint"}, "t", r"no column 'price', 'id'.*to_json\(struct"),
        ({"key": "string"}, "t", "'value' is missing"),
        ({"value": "bigint"}, "t", "'value' is bigint; it must be string or binary"),
        ({"value": "string"}, None, "give the option topic, or a column topic"),
    ],
)
def test_columns_that_records_do_not_have_are_named(given: dict[str, str], topic: str | None, said: str) -> None:
    with pytest.raises(SchemaMismatch, match=said):
        check_columns(columns(**given), topic)
