"""Who asks. Every verb of the broker takes one."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    name: str
    host: str = ""  # the address the request came from


ANONYMOUS = Principal("anonymous")
BROKER = Principal("broker")  # the broker's own housekeeping
