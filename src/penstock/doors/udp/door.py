"""The udp door."""

from penstock.broker.broker import Broker


class UdpDoor:
    name = "udp"

    def __init__(self, broker: Broker, host: str, port: int) -> None: ...

    async def open(self) -> str:
        return "127.0.0.1:0"

    async def drain(self, timeout_s: float) -> None: ...

    async def close(self) -> None: ...
