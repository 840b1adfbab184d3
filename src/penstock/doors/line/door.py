"""The line door."""

from penstock.broker.broker import Broker
from penstock.doors.limits import Limits


class LineDoor:
    name = "line"

    def __init__(
        self,
        broker: Broker,
        host: str,
        port: int,
        *,
        limits: Limits,
        max_request_bytes: int,
        max_silence_s: float = 600.0,
    ) -> None: ...

    async def open(self) -> str:
        return "127.0.0.1:0"

    async def drain(self, timeout_s: float) -> None: ...

    async def close(self) -> None: ...
