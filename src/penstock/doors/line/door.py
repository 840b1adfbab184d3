"""The line door: a listener whose connections speak the text protocol or the binary one."""

from penstock.broker.broker import Broker
from penstock.doors.limits import Limits
from penstock.doors.line.switch import NewConnection
from penstock.doors.line.text_fetch import LeftReaders
from penstock.doors.listener import Listener


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
    ) -> None:
        self.broker = broker
        self.limits = limits
        self.max_request_bytes = max_request_bytes
        self.left_readers = LeftReaders()
        self.listener = Listener(
            self.name, host, port, limits, lambda: NewConnection(self), max_silence_s=max_silence_s
        )

    async def open(self) -> str:
        await self.listener.open()
        host, port = self.listener.host, self.listener.port
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def drain(self, timeout_s: float) -> None:
        await self.listener.drain(timeout_s)

    async def close(self) -> None:
        await self.listener.close()
