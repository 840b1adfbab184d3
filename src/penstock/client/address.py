"""Where servers are: `host:port`, several separated by commas; IPv6 addresses in brackets."""

from collections.abc import Sequence
from typing import NamedTuple

DEFAULT_PORT = 7070


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(servers: str | Sequence[str]) -> list[Address]:
    """Raises ValueError, saying how an address is written."""
    texts = servers.split(",") if isinstance(servers, str) else servers
    addresses = [_parse(text.strip()) for text in texts if text.strip()]
    if not addresses:
        raise ValueError(f"no server given: write host:port, as in 127.0.0.1:{DEFAULT_PORT}")
    return addresses


def _parse(text: str) -> Address:
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    if not host or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)):
        raise ValueError(f"server {text!r} is not allowed: write host:port, as in 127.0.0.1:{DEFAULT_PORT}")
    return Address(host, int(port) if port else DEFAULT_PORT)
