"""The kinds of values a setting can have: each turns what a person wrote into a typed value, or says what is allowed.

A kind accepts the text of a flag or an environment variable, and what TOML, JSON or YAML make of a key. Anything else
is a `ValueError` whose message starts where "is not allowed: " ends; the caller adds the key, the value and the place.
"""

import json
import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

BYTES_PER_UNIT = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
MS_PER_UNIT = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
MS_PER_NAME = {"ms": 1, "s": 1000, "minutes": 60_000}

_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")
PORT_MAX = 65535


class Kind(Protocol):
    @property
    def word(self) -> str:
        """One word that stands for the value in a usage line."""
        ...

    @property
    def allowed(self) -> str:
        """What a person may write, for error messages and the reference."""
        ...

    def parse(self, raw: object) -> object:
        """The typed value, or ValueError saying what would have been allowed."""
        ...


# -- addresses and places -----------------------------------------------------------------------------------


class Listen(NamedTuple):
    """An address to listen on or to be reached at. Port 0 means: whichever port is free, or really in use."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        """True when it names every interface, so that no client could connect to it as it is written."""
        return self.host in ("0.0.0.0", "::")

    @classmethod
    def parse(cls, text: str, default_port: int | None = None) -> "Listen":
        """`host:port` or `[ipv6]:port`; the port may be absent if there is a default for it."""
        if text.startswith("["):
            host, bracket, rest = text[1:].partition("]")
            if not bracket or (rest and not rest.startswith(":")):
                raise ValueError("an IPv6 address stands in brackets, as in [::1]:9092")
            port_text = rest[1:]
            if ":" not in host:
                raise ValueError("only an IPv6 address stands in brackets, as in [::1]:9092")
        else:
            host, _, port_text = text.partition(":")
            if ":" in port_text:
                raise ValueError("an IPv6 address stands in brackets, as in [::1]:9092")
            host = host or "0.0.0.0"
        if not re.fullmatch(r"[^\s/\[\]]+", host):
            raise ValueError("the host is a name or an IP address")
        if not port_text and default_port is not None and not text.endswith(":"):
            return cls(host, default_port)
        if not (port_text.isascii() and port_text.isdigit() and int(port_text) <= PORT_MAX):
            raise ValueError(f"the port is a number from 0 to {PORT_MAX}, as in 127.0.0.1:9092")
        return cls(host, int(port_text))


class Storage(NamedTuple):
    """Where topics live unless they say otherwise, and whether anything is on disk at all."""

    topics: Literal["disk", "memory"]
    persistent: bool = True  # False: internal topics are in memory too and there is no data directory
    path: str | None = None  # the data directory, when the URL names it

    def __str__(self) -> str:
        if not self.persistent:
            return "memory:"
        return f"file:{self.path}" if self.path else self.topics


# -- the kinds ----------------------------------------------------------------------------------------------


def _text(raw: object, allowed: str) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise ValueError(f"allowed is {allowed}")
    return raw.strip()


class Text:
    word = "TEXT"

    def __init__(self, allowed: str = "text", pattern: str = ".+") -> None:
        self.allowed = allowed
        self.pattern = pattern

    def parse(self, raw: object) -> str:
        text = _text(raw, self.allowed)
        if not re.fullmatch(self.pattern, text):
            raise ValueError(f"allowed is {self.allowed}")
        return text


class Directory:
    allowed = "a path"
    word = "DIR"

    def parse(self, raw: object) -> str:
        return _text(raw, self.allowed)


class Switch:
    allowed = "true or false"
    word = "true|false"

    def parse(self, raw: object) -> bool:
        if isinstance(raw, bool):
            return raw
        word = raw.strip().lower() if isinstance(raw, str) else None
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
        raise ValueError(f"allowed is {self.allowed}")


class Choice:
    def __init__(self, *words: str) -> None:
        self.words = words
        self.word = "|".join(words)

    @property
    def allowed(self) -> str:
        return " or ".join(filter(None, (", ".join(self.words[:-1]), self.words[-1])))

    def parse(self, raw: object) -> str:
        word = raw.strip().lower() if isinstance(raw, str) else None
        if word not in self.words:
            raise ValueError(f"allowed is {self.allowed}")
        return word


class _Number:
    def __init__(self, least: int = 0, most: int = 2**63 - 1) -> None:
        self.least = least
        self.most = most

    @property
    def _range(self) -> str:
        return f"from {self.least} to {self.most}" if self.most < 2**31 else f"of at least {self.least}"

    def _bounded(self, value: int, allowed: str) -> int:
        if not self.least <= value <= self.most:
            raise ValueError(f"allowed is {allowed}")
        return value


class Count(_Number):
    word = "N"

    @property
    def allowed(self) -> str:
        return f"a number {self._range}"

    def parse(self, raw: object) -> int:
        if isinstance(raw, str) and re.fullmatch(r"\s*-?[0-9][0-9_]*\s*", raw):
            raw = int(raw.replace("_", ""))
        if not isinstance(raw, int) or isinstance(raw, bool):
            raise ValueError(f"allowed is {self.allowed}")
        return self._bounded(raw, self.allowed)


class Size(_Number):
    """Bytes: a number, or one with a unit (64MiB, 1GB)."""

    word = "SIZE"

    @property
    def allowed(self) -> str:
        return f"a number of bytes {self._range}, or a size such as 512KiB, 64MiB or 1GB"

    def parse(self, raw: object) -> int:
        return self._bounded(_quantity(raw, BYTES_PER_UNIT, 1, self.allowed), self.allowed)


class Duration(_Number):
    """A time in the unit that the setting's name ends in: a number of those, or one with its own unit (5m, 7d)."""

    word = "TIME"

    def __init__(self, least: int = 0, most: int = 2**63 - 1, unit: Literal["ms", "s", "minutes"] = "ms") -> None:
        super().__init__(least, most)
        self.unit = unit

    @property
    def allowed(self) -> str:
        name = {"ms": "milliseconds", "s": "seconds", "minutes": "minutes"}[self.unit]
        return f"a number of {name} {self._range}, or a time such as 500ms, 30s, 5m, 12h or 7d"

    def parse(self, raw: object) -> int:
        unit_ms = MS_PER_NAME[self.unit]
        value_ms = _quantity(raw, MS_PER_UNIT, unit_ms, self.allowed)
        if value_ms % unit_ms:
            raise ValueError(f"allowed is {self.allowed}; this is not a whole number of them")
        return self._bounded(value_ms // unit_ms, self.allowed)


def _quantity(raw: object, units: Mapping[str, int], plain_unit: int, allowed: str) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw * plain_unit
    match = _QUANTITY.fullmatch(raw.replace("_", "")) if isinstance(raw, str) else None
    if match is None:
        raise ValueError(f"allowed is {allowed}")
    number, unit = match[1], match[2].lower()
    scale = units.get(unit) if unit else plain_unit
    if scale is None:
        raise ValueError(f"allowed is {allowed}; there is no unit {match[2]!r}")
    value = float(number) * scale if "." in number else int(number) * scale
    if value != int(value):
        raise ValueError(f"allowed is {allowed}; this is not a whole number of them")
    return int(value)


class Address:
    """Where a door listens; None when the door is off."""

    allowed = "host:port, [ipv6]:port or off; port 0 picks a free port"
    word = "HOST:PORT|off"

    def parse(self, raw: object) -> Listen | None:
        if raw is False or (isinstance(raw, str) and raw.strip().lower() == "off"):  # YAML reads `off` as false
            return None
        try:
            return Listen.parse(_text(raw, self.allowed))
        except ValueError as error:
            raise ValueError(_with_reason(self.allowed, error)) from None


class Advertised:
    """Where clients reach a door; port 0 when only the host is given, and the real port is meant."""

    allowed = "host, host:port or [ipv6]:port"
    word = "HOST[:PORT]"

    def parse(self, raw: object) -> Listen:
        try:
            address = Listen.parse(_text(raw, self.allowed), default_port=0)
        except ValueError as error:
            raise ValueError(_with_reason(self.allowed, error)) from None
        if address.is_wildcard:
            raise ValueError(f"allowed is {self.allowed} that clients can connect to, which {address.host} is not")
        return address


def _with_reason(allowed: str, error: ValueError) -> str:
    reason = str(error)
    return reason if reason.startswith("allowed is") else f"allowed is {allowed}; {reason}"


class StoragePlace:
    allowed = "disk, memory, file:, file:PATH or memory:"
    word = "disk|memory|URL"

    def parse(self, raw: object) -> Storage:
        text = _text(raw, self.allowed)
        scheme, colon, rest = text.partition(":")
        match scheme.lower(), colon, rest:
            case "disk", "", "":
                return Storage("disk")
            case "memory", "", "":
                return Storage("memory")
            case "memory", ":", "":
                return Storage("memory", persistent=False)
            case "file", ":", path:
                return Storage("disk", path=path.removeprefix("//") or None)
        raise ValueError(f"allowed is {self.allowed}")


class Table:
    """Names and values, such as Kafka's topic settings. As text: `a=1,b=2`, or JSON.

    A part without `=` belongs to the value before it: `cleanup.policy=compact,delete` is one entry.
    """

    allowed = "a table of names and values; as text: name=value,name=value"
    word = "NAME=VALUE"

    def parse(self, raw: object) -> dict[str, str]:
        if isinstance(raw, str):
            raw = json.loads(raw) if raw.lstrip().startswith("{") else self._pairs(raw)
        if not isinstance(raw, Mapping):
            raise ValueError(f"allowed is {self.allowed}")
        return {str(name): self._plain(name, value) for name, value in self._flat("", raw)}

    def _pairs(self, text: str) -> dict[str, str]:
        pairs: dict[str, str] = {}
        last = None
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, equals, value = part.partition("=")
            if equals and name.strip():
                last = name.strip()
                pairs[last] = value.strip()
            elif last is not None and not equals:
                pairs[last] += "," + part
            else:
                raise ValueError(f"allowed is {self.allowed}")
        return pairs

    def _flat(self, prefix: str, table: Mapping[object, object]) -> list[tuple[str, object]]:
        """TOML reads an unquoted `retention.ms = 1` as a table in a table: join the names again."""
        entries: list[tuple[str, object]] = []
        for name, value in table.items():
            if isinstance(value, Mapping):
                entries += self._flat(f"{prefix}{name}.", value)
            else:
                entries.append((f"{prefix}{name}", value))
        return entries

    def _plain(self, name: object, value: object) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, list):
            return ",".join(self._plain(name, one) for one in value)
        if not isinstance(value, (str, int, float)):
            raise ValueError(f"{name} holds neither text nor a number")
        return str(value)
