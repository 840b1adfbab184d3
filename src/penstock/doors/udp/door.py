"""The UDP door: datagrams in, nothing out. What cannot be stored is dropped and counted; nobody ever waits.

    received -> its topic is known: published with all others of this tick
             -> its topic is new:   kept until the topic is open, or dropped when it cannot be
             -> too much is under way: dropped

Bounds: bytes received and not yet stored, topics at hand, topics being opened.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import Sequence
from functools import partial
from typing import cast

from penstock.broker.broker import Broker
from penstock.broker.gather import Target
from penstock.doors.udp.drops import Drops
from penstock.model.errors import PenstockError, UnknownTopic
from penstock.model.message import Outgoing, Placed
from penstock.security.principal import ANONYMOUS
from penstock.wire.udp.datagram import Datagram, Malformed, parse

_log = logging.getLogger(__name__)

RECEIVE_BUFFER_BYTES = 8 << 20  # the kernel gives at most net.core.rmem_max
MAX_UNDER_WAY_BYTES = 32 << 20
MAX_TARGETS = 1_000
MAX_OPENING = 100
REFUSED_S = 1.0  # so long a topic that could not be had is not asked for again
DATAGRAM_COST_BYTES = 200  # what a datagram takes beside its bytes
SO_MEMINFO = 55  # Linux; the ninth number is how many datagrams the kernel dropped
LOOK_AT_KERNEL_S = 1.0

Messages = list[Outgoing]


class UdpDoor(asyncio.DatagramProtocol):
    name = "udp"

    def __init__(self, broker: Broker, host: str, port: int) -> None:
        self.broker = broker
        self.host, self.port = host, port
        self.drops = Drops()
        self.received = 0
        self.under_way_bytes = 0
        self._transport: asyncio.DatagramTransport | None = None
        self._targets: dict[str, Target] = {}
        self._refused: dict[str, tuple[float, str]] = {}  # until when, and why
        self._opening: dict[str, list[tuple[Messages, int]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._gathered: dict[str, list[tuple[Messages, int]]] = {}
        self._kernel_drops = 0
        self._look: asyncio.TimerHandle | None = None
        self._settled = asyncio.Event()

    async def open(self) -> str:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(self.host, self.port))
        self._transport = transport
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        self.port = transport.get_extra_info("sockname")[1]
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def drain(self, timeout_s: float) -> None:
        if self._transport is not None:
            self._transport.close()
        try:
            async with asyncio.timeout(timeout_s):
                while self.under_way_bytes:
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError:
            _log.warning("udp: %d bytes were still not stored after %g s", self.under_way_bytes, timeout_s)

    async def close(self) -> None:
        if self._look is not None:
            self._look.cancel()
        if self._transport is not None:
            self._transport.abort()
        for task in self._tasks:
            task.cancel()
        self.drops.report()

    # -- datagrams --------------------------------------------------------------------------------------------

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.received += 1
        size_bytes = len(data) + DATAGRAM_COST_BYTES
        if self.under_way_bytes + size_bytes > MAX_UNDER_WAY_BYTES:
            self.drops.count("too much under way")
            return
        try:
            topic, messages = _outgoing(parse(data))
        except Malformed as error:
            self.drops.count(str(error))
            return
        if not messages:
            return
        self.under_way_bytes += size_bytes
        if topic in self._targets:
            self._gather(topic, messages, size_bytes)
        elif topic in self._opening:
            self._opening[topic].append((messages, size_bytes))
        else:
            self._open(topic, messages, size_bytes)

    def error_received(self, exc: Exception) -> None:
        self.drops.count(f"the socket failed ({exc})", 0)

    def _open(self, topic: str, messages: Messages, size_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        until, reason = self._refused.get(topic, (0.0, ""))
        if loop.time() < until:
            self._drop(reason, 1, size_bytes)
        elif len(self._opening) >= MAX_OPENING:
            self._drop("too many new topics at once", 1, size_bytes)
        else:
            self._opening[topic] = [(messages, size_bytes)]
            task = loop.create_task(self._find(topic))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _find(self, topic: str) -> None:
        try:
            target = await self.broker.gatherer.target(ANONYMOUS, topic)
        except PenstockError as error:
            waiting = self._opening.pop(topic)
            self._drop(str(error), len(waiting), sum(size for _, size in waiting))
            if len(self._refused) >= MAX_TARGETS:
                self._refused.clear()
            self._refused[topic] = (asyncio.get_running_loop().time() + REFUSED_S, str(error))
            return
        if len(self._targets) >= MAX_TARGETS:
            self._targets.clear()
        self._targets[topic] = target
        for messages, size_bytes in self._opening.pop(topic):
            self._gather(topic, messages, size_bytes)

    # -- publishing -------------------------------------------------------------------------------------------

    def _gather(self, topic: str, messages: Messages, size_bytes: int) -> None:
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._publish)
        self._gathered.setdefault(topic, []).append((messages, size_bytes))

    def _publish(self) -> None:
        """At the end of the tick: one call for all datagrams of a topic."""
        gathered, self._gathered = self._gathered, {}
        for topic, datagrams in gathered.items():
            target = self._targets.get(topic)
            if target is None:  # thrown out since
                for messages, size_bytes in datagrams:
                    self._open_again(topic, messages, size_bytes)
                continue
            together = [message for messages, _ in datagrams for message in messages]
            size_bytes = sum([size for _, size in datagrams])
            stored = target.publish(together)
            if not stored.done() or stored.exception() is None:
                stored.add_done_callback(partial(self._stored, len(datagrams), size_bytes))
            elif isinstance(stored.exception(), UnknownTopic):
                del self._targets[topic]
                for messages, size in datagrams:
                    self._open_again(topic, messages, size)
            else:  # one of them is refused: the others are not to blame
                for messages, size in datagrams:
                    target.publish(messages).add_done_callback(partial(self._stored, 1, size))
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(LOOK_AT_KERNEL_S, self._look_at_kernel)

    def _open_again(self, topic: str, messages: Messages, size_bytes: int) -> None:
        if topic in self._opening:
            self._opening[topic].append((messages, size_bytes))
        else:
            self._open(topic, messages, size_bytes)

    def _stored(self, datagrams: int, size_bytes: int, stored: "asyncio.Future[list[Placed]]") -> None:
        error = stored.exception()
        if error is not None:
            self._drop(str(error), datagrams, size_bytes)
        else:
            self._release(size_bytes)

    def _drop(self, reason: str, datagrams: int, size_bytes: int) -> None:
        self.drops.count(reason, datagrams)
        self._release(size_bytes)

    def _release(self, size_bytes: int) -> None:
        self.under_way_bytes -= size_bytes
        if not self.under_way_bytes:
            self._settled.set()

    def _look_at_kernel(self) -> None:
        """Count what came faster than it was read. A while after something came; never when nothing does."""
        self._look = None
        if self._transport is None or self._transport.is_closing():
            return
        sock = cast(socket.socket, self._transport.get_extra_info("socket"))
        try:
            numbers = struct.unpack("9I", sock.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36))
        except (OSError, struct.error):
            return
        if numbers[8] > self._kernel_drops:
            self.drops.count("the receive buffer was full", numbers[8] - self._kernel_drops)
        self._kernel_drops = numbers[8]


def _outgoing(datagram: Datagram) -> tuple[str, Messages]:
    messages: Sequence[tuple[bytes | None, bytes]] = datagram.messages
    return datagram.topic, [Outgoing(key, payload) for key, payload in messages]
