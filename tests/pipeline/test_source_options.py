"""Wrong options are told at once, by name, with what is right."""

import json
from typing import Any

import pytest

from penstock.pipeline.errors import InvalidOption
from penstock.pipeline.options import SOURCE_OPTIONS, source_options
from penstock.pipeline.planning import Range, share, split
from penstock.pipeline.schemas import layout, spark_schema, value_fields

GOOD = {"server": "127.0.0.1:7070", "topics": "orders"}


def options(**given: Any) -> Any:
    return source_options({**GOOD, **given})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"server": ""}, "the option server is missing.*127.0.0.1:7070"),
        ({"server": "host:port"}, "write host:port"),
        ({"topics": ""}, "exactly one of the options topics, topicPattern and assign.*none is given"),
        ({"topicPattern": "o.*"}, "exactly one .* topics and topicPattern are given"),
        ({"topics": "", "topicPattern": "("}, "topicPattern is '\\(', which is no regular expression"),
        ({"topics": "", "assign": "orders"}, 'assign is .* write JSON: {"orders"'),
        ({"topics": "", "assign": '{"orders": 1}'}, "does not list partitions"),
        ({"topics": "", "assign": '{"orders": [-1]}'}, "does not list partitions"),
        ({"startingOffsets": "first"}, "startingOffsets is 'first'.*earliest, latest, committed"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "has -3 for partition '0' of 'orders'"),
        ({"startingOffsets": '{"orders": {"a": 1}}'}, "for partition 'a'"),
        ({"startingOffsets": '{"orders": {"0": true}}'}, "has True"),
        ({"startingOffsets": '{"orders": 5}'}, "startingOffsets is"),
        ({"startingOffsets": "committed"}, "needs the option group"),
        (
            {"startingOffsets": "earliest", "startingTimestamp": "5"},
            "only one of the options startingOffsets, startingT",
        ),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp is 'yesterday'.*milliseconds since 1970"),
        ({"endingOffsets": "earliest"}, "endingOffsets is 'earliest'"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "ends at the earliest"),
        ({"endingOffsetsByTimestamp": '{"orders": {"0": -1}}'}, "has -1"),
        ({"maxRecordsPerTrigger": "0"}, "maxRecordsPerTrigger is '0'; it must be a whole number above 0"),
        ({"maxRecordsPerTrigger": "many"}, "whole number above 0"),
        ({"maxBytesPerTrigger": "5x"}, "number of bytes, such as 64m"),
        ({"minPartitions": "-1"}, "whole number above 0"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss is 'maybe'; it must be true or false"),
        ({"isolation": "serializable"}, "read_committed or read_uncommitted"),
        ({"columns": "key,colour"}, "names 'colour'; the columns are key, value, topic"),
        ({"read": "quick"}, "auto or broker or direct"),
        ({"timeout": "soon"}, "number of seconds above 0"),
        ({"valueFormat": "json"}, "valueFormat needs the option schema"),
        ({"valueFormat": "xml", "schema": "a INT"}, "json or avro"),
        ({"mode": "permissive"}, "mode is for values that are read with the option schema"),
        ({"mode": "dropmalformed", "schema": "a INT"}, "failfast or permissive"),
    ],
)
def test_a_wrong_option_is_told(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        options(**given)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("subscribe", "topics"),
        ("startingOffset", "startingOffsets"),
        ("kafka.bootstrap.servers", "server"),
        ("zzz", ""),
    ],
)
def test_an_unknown_name_is_told_with_all_that_are_known(name: str, meant: str) -> None:
    with pytest.raises(InvalidOption) as told:
        options(**{name: "x"})
    assert repr(name.lower()) in str(told.value)
    assert (f"did you mean {meant}?" in str(told.value)) == bool(meant)
    assert all(known in str(told.value) for known in SOURCE_OPTIONS)


def test_names_are_not_told_apart_by_case() -> None:
    read = source_options({"SERVER": "h:1", "TopICS": "a, b ,a", "failondataloss": "FALSE", "MinPartitions": "3"})
    assert (read.server, read.topics, read.fail_on_data_loss, read.min_partitions) == ("h:1", ("a", "b"), False, 3)


def test_what_is_for_one_kind_of_read_is_refused_by_the_other() -> None:
    with pytest.raises(InvalidOption, match="endingOffsets is for a batch read"):
        source_options({**GOOD, "endingOffsets": "latest"}, stream=True)
    with pytest.raises(InvalidOption, match="maxRecordsPerTrigger is for a stream"):
        source_options({**GOOD, "maxRecordsPerTrigger": "5"}, stream=False)
    with pytest.raises(InvalidOption, match="read=direct is for batch reads"):
        source_options({**GOOD, "read": "direct"}, stream=True)


def test_sizes_and_times_may_be_written_as_people_do() -> None:
    read = options(maxBytesPerTrigger="64MB", startingTimestamp="2026-01-31T12:00:00+02:00", timeout="5s")
    assert (read.max_bytes, read.starting.time_ms, read.timeout_s) == (64 << 20, 1769853600000, 5.0)


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        ("id BIGINT, name STRING", ("id", "name")),
        ("id: INT, price DECIMAL(10, 2) NOT NULL, tags ARRAY<STRING>", ("id", "price", "tags")),
        ("at STRUCT<x: INT, y: MAP<STRING, INT>>,`odd, name` STRING COMMENT 'a'", ("at", "odd, name")),
    ],
)
def test_the_names_of_a_schema_in_words(schema: str, names: tuple[str, ...]) -> None:
    assert value_fields(options(schema=schema)) == names


def test_a_field_keeps_its_name_and_the_records_column_yields() -> None:
    columns = layout(options(schema="id INT, timestamp STRING, Offset INT", mode="permissive"))
    assert [one.name for one in columns] == [
        "id", "timestamp", "Offset", "key", "topic", "partition", "_offset", "_timestamp", "timestampType", "headers",
        "_corrupt",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("id INT, ID STRING", "two fields"),
        (",", "has no fields"),
        ('{"type": "record"}', "no Avro schema"),
        ('{"type": "map", "values": "int"}', "that of a record"),
        ('{"type": "record", "name": "r", "fields": [{"name": "n", "type": ["null", "r"]}]}', "holds itself"),
        ('{"type": "record", "name": "r", "fields": [{"name": "n", "type": ["int", "string"]}]}', "a union of 2"),
    ],
)
def test_a_schema_that_cannot_be_is_told(schema: str, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        spark_schema(options(schema=schema))


def test_avro_in_words_is_told() -> None:
    with pytest.raises(InvalidOption, match="must be an Avro schema in JSON"):
        spark_schema(options(schema="id INT", valueFormat="avro"))


def test_avro_types_become_sparks() -> None:
    fields = [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "kind", "symbols": ["a"]}},
        {"name": "again", "type": ["null", "kind"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "more", "type": {"type": "map", "values": ["null", "double"]}},
        {"name": "place", "type": {"type": "record", "name": "place", "fields": [{"name": "x", "type": "int"}]}},
    ]
    made = spark_schema(
        options(schema=json.dumps({"type": "record", "name": "order", "fields": fields}), columns="offset")
    )
    assert not isinstance(made, str)
    assert made.simpleString() == (
        "struct<id:bigint,at:timestamp,price:decimal(9,2),kind:string,again:string,tags:array<string>,"
        "more:map<string,double>,place:struct<x:int>,offset:bigint>"
    )


# -- arithmetic ---------------------------------------------------------------------------------------------


def test_a_limit_is_shared_by_size_and_kept_to_the_record() -> None:
    sizes = {("a", 0): 700, ("a", 1): 200, ("b", 0): 1, ("b", 1): 0}
    for limit in (1, 2, 7, 100, 900, 901, 5000):
        shares = share(limit, sizes)
        assert sum(shares.values()) == min(limit, 901)
        assert all(shares[one] <= sizes[one] for one in sizes)


def test_pieces_of_ranges_lie_end_to_end() -> None:
    ranges = [Range("a", 0, 5, 105), Range("a", 1, 7, 7), Range("b", 0, 0, 3)]
    for least in (None, 1, 2, 10, 1000):
        for most in (None, 1, 30, 1000):
            pieces = split(ranges, least, most)
            assert all(piece.size > 0 for piece in pieces)
            assert [n for piece in pieces for n in range(piece.start, piece.end) if piece.topic == "a"] == list(
                range(5, 105)
            )
            if most is not None:
                assert max(piece.size for piece in pieces) <= most
    assert len(split(ranges, 10, None)) in (10, 11)
    assert len(split([Range("a", n, 0, 100) for n in range(3)], 4, None)) >= 4
