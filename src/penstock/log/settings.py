"""Topic settings, under the names Kafka gave them. One table; an unsupported name is refused, never ignored.

Descriptions, defaults and allowed values that tools show come from this table too.
"""

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.model.errors import InvalidSetting
from penstock.storage.engine import Durability, StreamSpec

FOREVER = (1 << 63) - 1
_DAY_MS = 24 * 3600 * 1000
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")


class Kind(enum.IntEnum):
    """Type codes as Kafka's DescribeConfigs gives them."""

    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    kind: Kind
    default: str
    allowed: str
    doc: str
    parse: Callable[[str], Any]


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not _WHOLE.fullmatch(text):  # int() takes more than clients of other languages would
            raise ValueError(text)
        number = int(text)
        if not low <= number <= high:
            raise ValueError(text)
        return number

    return parse


def _ratio(text: str) -> float:
    number = float(text)
    if not 0.0 <= number <= 1.0:
        raise ValueError(text)
    return number


def _one_of(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(text)
        return text

    return parse


def _policies(text: str) -> frozenset[str]:
    policies = frozenset(part.strip() for part in text.split(",") if part.strip())
    if not policies <= {"delete", "compact", "settled"} or {"compact", "settled"} <= policies:
        raise ValueError(text)
    return policies


def _long(name: str, default: int, doc: str, low: int = 0) -> Setting:
    return Setting(name, Kind.LONG, str(default), f"a whole number of at least {low}", doc, _whole(low, FOREVER))


def _int(name: str, default: int, doc: str, low: int, high: int = (1 << 31) - 1) -> Setting:
    return Setting(name, Kind.INT, str(default), f"a whole number from {low} to {high}", doc, _whole(low, high))


def _choice(name: str, doc: str, *names: str) -> Setting:
    return Setting(name, Kind.STRING, names[0], " or ".join(names), doc, _one_of(*names))


SETTINGS: Mapping[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting(
            "cleanup.policy",
            Kind.LIST,
            "delete",
            "delete, compact, settled, delete,compact or delete,settled",
            "delete: remove old segments by time and size; compact: keep the newest record of every key; "
            "settled: remove segments in which all queue views of the topic have settled everything.",
            _policies,
        ),
        _choice(
            "compression.type",
            "producer keeps batches as they come; any other value makes the broker store them so.",
            *("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        ),
        _long("delete.retention.ms", _DAY_MS, "How long a compacted topic keeps the tombstone of a deleted key."),
        _choice(
            "delivery.guarantee",
            "What a new queue view of this topic promises, unless it is told otherwise.",
            *("at-least-once", "at-most-once", "exactly-once"),
        ),
        _choice(
            "durability",
            "When a write is acknowledged: sync = on stable storage; interval = handed to the operating system, "
            "synced every flush.ms; os = handed to the operating system.",
            *("sync", "interval", "os"),
        ),
        _long("flush.ms", 1000, "With durability=interval: the longest time between two syncs.", low=1),
        _long("max.compaction.lag.ms", FOREVER, "A record becomes due for compaction after this time at the latest."),
        _int("max.message.bytes", 1_048_588, "The largest record batch that is accepted.", low=0),
        _long("message.timestamp.after.max.ms", FOREVER, "How far a record's timestamp may lie in the future."),
        _long("message.timestamp.before.max.ms", FOREVER, "How far a record's timestamp may lie in the past."),
        _choice(
            "message.timestamp.type",
            "CreateTime keeps the producer's timestamps; LogAppendTime replaces them.",
            *("CreateTime", "LogAppendTime"),
        ),
        Setting(
            "min.cleanable.dirty.ratio",
            Kind.DOUBLE,
            "0.5",
            "a number from 0 to 1",
            "Compaction starts when this share of the log was never compacted.",
            _ratio,
        ),
        _long("min.compaction.lag.ms", 0, "A record stays uncompacted for at least this time."),
        _int("min.insync.replicas", 1, "One durable copy is what a write waits for here.", low=1, high=1),
        _long(
            "retention.bytes", -1, "Remove the oldest segments above this size of a partition; -1: no bound.", low=-1
        ),
        _long("retention.ms", 7 * _DAY_MS, "Remove segments whose records are all older than this; -1: never.", low=-1),
        _int("segment.bytes", 1 << 30, "A segment is closed at this size.", low=1024),
        _long("segment.ms", 7 * _DAY_MS, "A segment is closed at this age.", low=1),
        _choice("storage", "disk: files; memory: gone when the server stops.", "disk", "memory"),
    )
}


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The parsed settings of one topic: `overrides` as given, everything else by default."""

    overrides: Mapping[str, str]
    compacted: bool
    deleted: bool
    settled: bool
    guarantee: str
    compression: str
    delete_retention_ms: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    timestamp_after_max_ms: int
    timestamp_before_max_ms: int
    log_append_time: bool
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    retention_bytes: int
    retention_ms: int
    in_memory: bool
    spec: StreamSpec


def check_setting(name: str, value: str | None) -> Any:
    """Parse one value, or raise InvalidSetting with what is allowed."""
    setting = SETTINGS.get(name)
    if setting is None:
        raise InvalidSetting(f"unknown topic setting {name!r}; supported are {', '.join(sorted(SETTINGS))}")
    if value is None:
        raise InvalidSetting(f"topic setting {name!r} needs a value: {setting.allowed}")
    try:
        return setting.parse(value.strip())
    except ValueError:
        raise InvalidSetting(f"topic setting {name} = {value!r} is not valid; allowed: {setting.allowed}") from None


def topic_settings(overrides: Mapping[str, str], defaults: Mapping[str, str] | None = None) -> TopicSettings:
    """Parse a topic's settings: what it was given, else the server's defaults, else ours."""
    given = {**(defaults or {}), **overrides}
    for name in given:
        check_setting(name, given[name])

    def value(name: str) -> Any:
        setting = SETTINGS[name]
        return setting.parse(given.get(name, setting.default).strip())

    policies: frozenset[str] = value("cleanup.policy")
    deleted = "delete" in policies
    retention_ms: int = value("retention.ms")
    segment_ms: int = value("segment.ms")
    if deleted and retention_ms > 0:
        # A segment leaves as a whole. Closing it within the retention time bounds how much longer records may stay:
        # at most twice the promise, however slowly the topic fills.
        segment_ms = min(segment_ms, retention_ms)
    return TopicSettings(
        overrides={name: text.strip() for name, text in overrides.items()},
        compacted="compact" in policies,
        deleted=deleted,
        settled="settled" in policies,
        guarantee=value("delivery.guarantee"),
        compression=value("compression.type"),
        delete_retention_ms=value("delete.retention.ms"),
        max_compaction_lag_ms=value("max.compaction.lag.ms"),
        max_message_bytes=value("max.message.bytes"),
        timestamp_after_max_ms=value("message.timestamp.after.max.ms"),
        timestamp_before_max_ms=value("message.timestamp.before.max.ms"),
        log_append_time=value("message.timestamp.type") == "LogAppendTime",
        min_cleanable_dirty_ratio=value("min.cleanable.dirty.ratio"),
        min_compaction_lag_ms=value("min.compaction.lag.ms"),
        retention_bytes=value("retention.bytes"),
        retention_ms=retention_ms,
        in_memory=value("storage") == "memory",
        spec=StreamSpec(
            durability=Durability(value("durability")),
            sync_interval_ms=value("flush.ms"),
            segment_bytes=value("segment.bytes"),
            segment_ms=segment_ms,
        ),
    )
