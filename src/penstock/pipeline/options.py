"""The options of the source, from the text that Spark hands over to values that are checked. Nothing else reads them.

Spark does not tell options apart by case; here they have the names that people write, and those that are not known are
refused with a list of what is, since an option with a typing error would otherwise be one that is silently left out.
"""

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from penstock.client.address import parse_addresses
from penstock.pipeline.errors import InvalidOption
from penstock.pipeline.offsets import ID

EARLIEST: Final = -2
LATEST: Final = -1

TIMEOUT_S: Final = 60.0
COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")

# What can be said to the source, and in which words.
SOURCE_OPTIONS: Final[dict[str, str]] = {
    "server": "host:port of the line door, several separated by commas",
    "topics": "names, separated by commas",
    "topicPattern": "a regular expression that whole names match",
    "assign": 'JSON: {"orders": [0, 1]}',
    "startingOffsets": 'earliest, latest, committed (where the group stands), or JSON: {"orders": {"0": 23, "1": -2}}',
    "endingOffsets": 'latest, or JSON: {"orders": {"0": 50, "1": -1}}; batch reads only',
    "startingTimestamp": "milliseconds since 1970, or 2026-01-31T12:00:00Z",
    "endingTimestamp": "likewise; batch reads only",
    "startingOffsetsByTimestamp": 'JSON: {"orders": {"0": 1767225600000}}',
    "endingOffsetsByTimestamp": "likewise; batch reads only",
    "maxRecordsPerTrigger": "a number; streams only",
    "maxBytesPerTrigger": "a number, such as 64m; streams only, and only nearly kept",
    "minPartitions": "split ranges so that there are so many tasks",
    "maxRecordsPerPartition": "split ranges that are larger; the order within a partition is then its tasks' order",
    "failOnDataLoss": "true or false",
    "isolation": "read_committed or read_uncommitted",
    "group": "a name that progress is committed under",
    "columns": f"some of {', '.join(COLUMNS)}, separated by commas",
    "includeHeaders": "true or false",
    "schema": "of the values: id BIGINT, name STRING; or an Avro schema as JSON",
    "valueFormat": "json or avro: what the values are, with a schema",
    "mode": "failfast or permissive: what to do with a value that does not fit the schema",
    "read": "auto, broker or direct: who reads the files; batch reads only",
    "timeout": "seconds that a server may be away before reading fails",
}

_ELSEWHERE: Final = {
    "subscribe": "topics",
    "topic": "topics",
    "subscribepattern": "topicPattern",
    "kafka.bootstrap.servers": "server",
    "servers": "server",
    "bootstrap.servers": "server",
    "maxoffsetspertrigger": "maxRecordsPerTrigger",
    "kafka.group.id": "group",
    "groupid": "group",
    "kafka.isolation.level": "isolation",
    "format": "valueFormat",
}

Offsets = dict[str, dict[int, int]]  # topic, partition


@dataclass(frozen=True)
class Bound:
    """Where to begin or to end: by name, by offsets, or by time."""

    kind: str  # earliest, latest, committed, offsets, time, times
    offsets: Offsets = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)  # of the topics that the offsets are of, where it was said
    time_ms: int = 0


@dataclass(frozen=True)
class SourceOptions:
    server: str
    topics: tuple[str, ...]
    pattern: str | None
    assigned: dict[str, tuple[int, ...]]
    starting: Bound
    ending: Bound
    max_records: int | None
    max_bytes: int | None
    min_partitions: int | None
    max_partition_records: int | None
    fail_on_data_loss: bool
    committed: bool
    group: str | None
    columns: tuple[str, ...]
    columns_given: bool
    schema: str | None
    value_format: str | None
    permissive: bool
    read: str
    timeout_s: float


def source_options(given: Mapping[str, str], *, stream: bool | None = None) -> SourceOptions:
    """Raises InvalidOption. `stream` tells which kind of read it is for, None that it is not known yet."""
    said = _Said(given)
    said.check_names()
    columns = said.columns()
    schema = said.text("schema")
    options = SourceOptions(
        server=said.server(),
        topics=said.names("topics"),
        pattern=said.pattern("topicPattern"),
        assigned=said.assigned(),
        starting=said.starting(stream),
        ending=said.ending(),
        max_records=said.number("maxRecordsPerTrigger"),
        max_bytes=said.size("maxBytesPerTrigger"),
        min_partitions=said.number("minPartitions"),
        max_partition_records=said.number("maxRecordsPerPartition"),
        fail_on_data_loss=said.flag("failOnDataLoss", True),
        committed=said.one_of("isolation", ("read_committed", "read_uncommitted")) != "read_uncommitted",
        group=said.text("group"),
        columns=columns or (COLUMNS if said.flag("includeHeaders", True) else COLUMNS[:-1]),
        columns_given=columns is not None,
        schema=schema,
        value_format=said.value_format(schema),
        permissive=said.one_of("mode", ("failfast", "permissive")) == "permissive",
        read=said.one_of("read", ("auto", "broker", "direct")) or "auto",
        timeout_s=said.seconds("timeout", TIMEOUT_S),
    )
    _check_together(options, said, stream)
    return options


def _check_together(options: SourceOptions, said: "_Said", stream: bool | None) -> None:
    ways = [name for name in ("topics", "topicPattern", "assign") if said.text(name)]
    if len(ways) != 1:
        wrong = f"{' and '.join(ways)} are given" if ways else "none is given"
        raise InvalidOption(f"exactly one of the options topics, topicPattern and assign says what to read; {wrong}")
    if options.starting.kind == "committed" and options.group is None:
        raise InvalidOption("startingOffsets is 'committed', which needs the option group")
    if options.schema is None and said.text("valueFormat"):
        raise InvalidOption("valueFormat needs the option schema, as in: id BIGINT, name STRING")
    if options.schema is None and said.text("mode"):
        raise InvalidOption("mode is for values that are read with the option schema")
    if stream:
        said.refuse("a batch read", "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
        if options.read == "direct":
            raise InvalidOption("read=direct is for batch reads (spark.read); streams read through the broker")
    if stream is False:
        said.refuse("a stream", "maxRecordsPerTrigger", "maxBytesPerTrigger")


class _Said:
    """The options as they were written."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): str(value) for name, value in given.items()}
        path = self._given.pop("path", None)  # what `load(...)` is called with
        if path is not None:
            self._given.setdefault("topics", path)

    def check_names(self) -> None:
        known = {name.lower(): name for name in SOURCE_OPTIONS}
        for name in self._given:
            if name in known:
                continue
            near = difflib.get_close_matches(name, known, 1)
            meant = _ELSEWHERE.get(name) or (known[near[0]] if near else None)
            hint = f"; did you mean {meant}?" if meant else "."
            raise InvalidOption(f"option {name!r} is not known{hint} Known are: {', '.join(SOURCE_OPTIONS)}")

    def refuse(self, only: str, *names: str) -> None:
        for name in names:
            if self.text(name) is not None:
                raise InvalidOption(f"option {name} is for {only}")

    def wrong(self, name: str, why: str = "is not allowed") -> InvalidOption:
        return InvalidOption(f"option {name} is {self.text(name)!r}, which {why}; write {SOURCE_OPTIONS[name]}")

    # -- kinds of values ----------------------------------------------------------------------------------------

    def text(self, name: str) -> str | None:
        value = self._given.get(name.lower())
        return value.strip() if value and value.strip() else None

    def server(self) -> str:
        server = self.text("server")
        if server is None:
            raise InvalidOption(f"the option server is missing: {SOURCE_OPTIONS['server']}, as in 127.0.0.1:7070")
        try:
            parse_addresses(server)
        except ValueError as error:
            raise InvalidOption(f"option server: {error}") from None
        return server

    def names(self, name: str) -> tuple[str, ...]:
        parts = [part.strip() for part in (self.text(name) or "").split(",")]
        return tuple(dict.fromkeys(part for part in parts if part))

    def pattern(self, name: str) -> str | None:
        text = self.text(name)
        if text is not None:
            try:
                re.compile(text)
            except re.error as error:
                raise self.wrong(name, f"is no regular expression ({error})") from None
        return text

    def number(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and int(text) > 0):
            raise InvalidOption(f"option {name} is {text!r}; it must be a whole number above 0")
        return int(text)

    def size(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        found = re.fullmatch(r"(\d+)\s*([kmg]?)i?b?", text.lower())
        if found is None or int(found[1]) == 0:
            raise InvalidOption(f"option {name} is {text!r}; it must be a number of bytes, such as 64m")
        return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]]

    def seconds(self, name: str, otherwise: float) -> float:
        text = self.text(name)
        if text is None:
            return otherwise
        try:
            seconds = float(text.removesuffix("s"))
        except ValueError:
            seconds = -1.0
        if not 0 < seconds < 1e9:
            raise InvalidOption(f"option {name} is {text!r}; it must be a number of seconds above 0")
        return seconds

    def flag(self, name: str, otherwise: bool) -> bool:
        text = self.text(name)
        if text is None:
            return otherwise
        if text.lower() not in ("true", "false"):
            raise InvalidOption(f"option {name} is {text!r}; it must be true or false")
        return text.lower() == "true"

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str | None:
        text = self.text(name)
        if text is not None and text.lower() not in allowed:
            raise InvalidOption(f"option {name} is {text!r}; it must be {' or '.join(allowed)}")
        return text.lower() if text is not None else None

    def columns(self) -> tuple[str, ...] | None:
        names = self.names("columns")
        by_lower = {column.lower(): column for column in COLUMNS}
        for name in names:
            if name.lower() not in by_lower:
                raise InvalidOption(f"option columns names {name!r}; the columns are {', '.join(COLUMNS)}")
        return tuple(by_lower[name.lower()] for name in names) or None

    def value_format(self, schema: str | None) -> str | None:
        said = self.one_of("valueFormat", ("json", "avro"))
        if said is not None or schema is None:
            return said
        return "avro" if schema.startswith(("{", "[", '"')) else "json"

    # -- where to begin and end -----------------------------------------------------------------------------------

    def assigned(self) -> dict[str, tuple[int, ...]]:
        if self.text("assign") is None:
            return {}
        found = self._json("assign")
        for partitions in found.values():
            if not isinstance(partitions, list) or not partitions or not all(_is_index(one) for one in partitions):
                raise self.wrong("assign", "does not list partitions")
        return {topic: tuple(sorted(set(partitions))) for topic, partitions in found.items()}

    def starting(self, stream: bool | None) -> Bound:
        bound = self._bound("starting")
        if bound is None:
            return Bound("latest" if stream else "earliest")
        return bound

    def ending(self) -> Bound:
        bound = self._bound("ending") or Bound("latest")
        if bound.kind in ("earliest", "committed"):
            raise self.wrong("endingOffsets")
        if any(offset == EARLIEST for of_topic in bound.offsets.values() for offset in of_topic.values()):
            raise self.wrong("endingOffsets", "ends at the earliest (-2)")
        return bound

    def _bound(self, side: str) -> Bound | None:
        ways = {
            f"{side}Offsets": self._by_offsets,
            f"{side}Timestamp": self._by_time,
            f"{side}OffsetsByTimestamp": self._by_times,
        }
        given = [name for name in ways if self.text(name) is not None]
        if len(given) > 1:
            raise InvalidOption(f"only one of the options {', '.join(given)} may be given")
        return ways[given[0]](given[0]) if given else None

    def _by_offsets(self, name: str) -> Bound:
        text = self.text(name) or ""
        if text.lower() in ("earliest", "latest", "committed"):
            return Bound(text.lower())
        found = self._json(name)
        ids = {
            topic: offsets.pop(ID)
            for topic, offsets in found.items()
            if isinstance(offsets, dict) and isinstance(offsets.get(ID), str)
        }
        return Bound("offsets", self._per_partition(name, found, least=EARLIEST), ids)

    def _by_time(self, name: str) -> Bound:
        text = self.text(name) or ""
        if text.isascii() and text.isdigit():
            return Bound("time", time_ms=int(text))
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise self.wrong(name) from None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return Bound("time", time_ms=int(moment.timestamp() * 1000))

    def _by_times(self, name: str) -> Bound:
        return Bound("times", self._per_partition(name, self._json(name), least=0))

    def _per_partition(self, name: str, said: dict[str, Any], least: int) -> Offsets:
        found: Offsets = {}
        for topic, offsets in said.items():
            if not isinstance(offsets, dict):
                raise self.wrong(name)
            found[topic] = {}
            for partition, offset in offsets.items():
                whole = isinstance(offset, int) and not isinstance(offset, bool)
                if not partition.isdigit() or not whole or offset < least:
                    raise self.wrong(name, f"has {offset!r} for partition {partition!r} of {topic!r}")
                found[topic][int(partition)] = offset
        return found

    def _json(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads(self.text(name) or "")
        except ValueError:
            raise self.wrong(name) from None
        if not isinstance(found, dict) or not found:
            raise self.wrong(name)
        return found


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
