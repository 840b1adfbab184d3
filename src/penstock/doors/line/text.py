"""One connection that speaks the text protocol: commands in, answers out, in order.

    received -> begun in order -> answered in order

PUB, PUBLISH and the commands that settle are only begun, so thousands of them share one sync. Every other command is
begun when all before it are answered, so it sees what they did. What subscriptions deliver comes between answers.

Bounds: commands under way and their bytes per connection, their bytes over all connections (Limits), the transport's
write buffer: who does not read is not read from and gets no more of what can wait.
"""

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from penstock.doors.line import text_publish, text_settle
from penstock.doors.line.text_commands import HANDLERS, MAY_WAIT, Quit, Session
from penstock.doors.line.text_fetch import Fetching
from penstock.doors.line.text_publish import Publishing, Run, Stored
from penstock.doors.line.text_settle import Settled, Settlement, Unsettled
from penstock.doors.line.text_subscriptions import Address, Subscriptions, keep_alive
from penstock.doors.line.text_words import error_code, error_reply
from penstock.model.errors import PenstockError
from penstock.security.principal import ANONYMOUS, Principal
from penstock.wire.line import replies
from penstock.wire.line.parser import Command, Parser, Refused

if TYPE_CHECKING:
    from penstock.doors.line.door import LineDoor

_log = logging.getLogger(__name__)

MAX_COMMANDS_UNDER_WAY = 10_000
MAX_HELD_BYTES = 4 << 20
TURN_S = 0.005  # then others get theirs
WRITE_BUFFER_BYTES = 256 << 10
MAX_UNREAD_BYTES = 64 << 20  # delivered and not taken; what a queue's credit allows may be more than is sane
LINGER_S = 2.0  # so long we listen to who was told why its connection ends, lest a reset takes that answer away


class Slot:
    """A place in the order of answers, for one command or a run of them."""

    __slots__ = ("answer", "commands", "size_bytes")

    def __init__(self, commands: int, size_bytes: int) -> None:
        self.commands = commands
        self.size_bytes = size_bytes
        self.answer: bytes | None = None


class TextConnection(asyncio.Protocol):
    def __init__(self, door: "LineDoor", transport: asyncio.Transport, first_bytes: bytes) -> None:
        self._door = door
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._parser = Parser(door.max_request_bytes)
        self._commands: deque[Command | Refused] = deque()
        self._slots: deque[Slot] = deque()
        self._begun = 0  # commands in slots
        self._unfinished_bytes = 0
        self._reading = True
        self._draining = False
        self._writable = True
        self._ending = False  # nothing more is taken; closed when all is answered
        self._left_silently = False  # it closed its side without a QUIT, as a process that is killed does
        self._lingers = False
        self._said_goodbye = False
        self._closed = False
        self._wake: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._answered: asyncio.Future[None] | None = None
        self._waiting: asyncio.Task[bytes] | None = None  # a command that may wait for long and changes nothing
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        peer = transport.get_extra_info("peername")
        self._host = str(peer[0]) if peer else ""
        principal = Principal(ANONYMOUS.name, self._host)
        self._publishing = Publishing(door.broker, principal)
        self._unsettled = Unsettled(door.broker, principal)
        self._subscriptions = Subscriptions()
        self._fetching = Fetching(door.broker, principal, door.left_readers)
        self._session = Session(door.broker, principal, self._subscriptions, self._unsettled, self._fetching, self)
        self._worker = self._loop.create_task(self._work())
        self.data_received(first_bytes)

    # -- the transport's side ---------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._ending:
            return
        self._received(self._parser.receive(data))

    def _received(self, found: list[Command | Refused]) -> None:
        limits = self._door.limits
        if found:
            self._commands.extend(found)
            limits.hold(self, sum([item.size_bytes for item in found]))
            self._door.listener.heard(self)
            self._notify()
        unfinished = self._parser.unfinished_bytes
        if unfinished != self._unfinished_bytes:
            limits.hold(self, unfinished - self._unfinished_bytes)
            self._unfinished_bytes = unfinished
        if self._reading and self._is_full():
            self._pause()

    def eof_received(self) -> bool:
        """Whoever pipes commands in closes its side after the last; it still wants the answers."""
        if not self._ending:
            self._received(self._parser.finish())
            self._ending = self._left_silently = True
            self._notify()
        elif self._lingers:
            self._transport.close()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.listener.gone(self)
        self._closed = True
        self._commands.clear()
        self._subscriptions.close(lost=True)
        self._fetching.close()
        # What was begun is carried through: cancelling it half-way could leave a fact recorded and not shown.
        if self._waiting is not None:
            self._waiting.cancel()
        self._notify()

    def pause_writing(self) -> None:
        self._writable = False
        self._pause()

    def resume_writing(self) -> None:
        self._writable = True
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._notify()
        self.resume_reading()

    # -- the listener's side ----------------------------------------------------------------------------------

    def idle(self) -> bool:
        # A subscriber is quiet by nature; whether it is still there is for TCP's keepalive to find out.
        return not self._commands and not self._slots and (self._draining or not self._subscriptions)

    def stop_reading(self) -> None:
        self._draining = True
        self._pause()
        self._subscriptions.close()

    def resume_reading(self) -> None:
        if self._reading or self._draining or self._closed or self._is_full():
            return
        self._reading = True
        self._transport.resume_reading()

    def abort(self) -> None:
        self._transport.abort()

    def _is_full(self) -> bool:
        if self._door.limits.exhausted:
            self._door.limits.wait(self)
            return True
        if not self._writable or len(self._commands) + self._begun >= MAX_COMMANDS_UNDER_WAY:
            return True
        # A payload that is still arriving may be larger than all others together.
        return self._door.limits.held_by(self) - self._unfinished_bytes >= MAX_HELD_BYTES

    def _pause(self) -> None:
        if self._reading and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    # -- the subscriptions' side ------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Between two answers."""
        if not self._transport.is_closing():
            self._transport.write(data)
            if self._transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
                _log.warning("line: closing the connection of %s: it does not read what it is sent", self._host)
                self.abort()

    async def drained(self) -> None:
        while not self._writable:
            if self._drained is None or self._drained.done():
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)

    def subscribed(self) -> None:
        keep_alive(self._transport.get_extra_info("socket"))

    def ended(self, address: Address, error: PenstockError) -> None:
        self._subscriptions.remove(address)
        self.write(replies.ended(str(address), error_code(error), str(error)))

    # -- commands ---------------------------------------------------------------------------------------------

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _work(self) -> None:
        """Begin one command after another. Runs as long as the connection."""
        turn_ends = 0.0
        try:
            while not self._closed:
                if self._commands and self._writable:
                    await self._begin()
                    self._flush()
                    if self._loop.time() < turn_ends:
                        continue
                    await asyncio.sleep(0)
                else:
                    self._end_if_done()
                    self._wake = self._loop.create_future()
                    await self._wake
                turn_ends = self._loop.time() + TURN_S
        except Exception:
            _log.exception("line: a command from %s failed; closing its connection", self._host)
            self.abort()

    async def _begin(self) -> None:
        first = self._commands[0]
        if isinstance(first, Refused):
            self._commands.popleft()
            slot = self._slot(1, first.size_bytes)
            slot.answer = replies.error(first.code, first.sentence)
            if first.fatal:
                self._end(lingers=True)
        elif first.name in text_publish.NAMES:
            await self._begin_publish(first)
        elif first.name in text_settle.OUTCOMES:
            self._begin_settle()
        else:
            self._commands.popleft()
            slot = self._slot(1, first.size_bytes)
            await self._others_answered()
            slot.answer = b"" if self._closed else await self._perform(first)

    def _slot(self, commands: int, size_bytes: int) -> Slot:
        slot = Slot(commands, size_bytes)
        self._begun += commands
        self._slots.append(slot)
        return slot

    async def _begin_publish(self, first: Command) -> None:
        try:
            run = text_publish.next_run(self._commands)
        except PenstockError as error:
            self._slot(1, first.size_bytes).answer = error_reply(error)
            return
        slot = self._slot(len(run.messages), run.size_bytes)
        try:
            stored = await self._publishing.begin(run)
        except PenstockError as error:
            slot.answer = error_reply(error) * slot.commands
            return
        stored.add_done_callback(partial(self._published, slot, run))

    def _published(self, slot: Slot, run: Run, stored: Stored) -> None:
        error = stored.exception()
        if error is None:
            slot.answer = text_publish.answer(run, stored.result())
        elif isinstance(error, PenstockError):
            slot.answer = error_reply(error) * slot.commands
        else:
            self.broken(error)
            return
        self._flush()

    def _begin_settle(self) -> None:
        settlement = self._unsettled.next_settlement(self._commands)
        slot = self._slot(settlement.count, settlement.size_bytes)
        try:
            settled = self._unsettled.settle(settlement)
        except PenstockError as error:
            slot.answer = error_reply(error) * slot.commands
            return
        if settled is None:
            slot.answer = settlement.answer([])
        else:
            settled.add_done_callback(partial(self._settled, slot, settlement))

    def _settled(self, slot: Slot, settlement: Settlement, settled: Settled) -> None:
        error = settled.exception()
        if error is None:
            slot.answer = settlement.answer(settled.result())
        elif isinstance(error, PenstockError):
            self._unsettled.put_back(settlement)
            slot.answer = error_reply(error) * slot.commands
        else:
            self.broken(error)
            return
        self._flush()

    async def _perform(self, command: Command) -> bytes:
        try:
            performing = HANDLERS[command.name](self._session, command)
            if command.name not in MAY_WAIT or "wait" not in command.options:
                return await performing
            self._waiting = self._loop.create_task(performing)
            await asyncio.wait([self._waiting])
            return b"" if self._waiting.cancelled() else self._waiting.result()
        except PenstockError as error:
            return error_reply(error)
        except Quit:
            self._end()
            return replies.BYE
        finally:
            self._waiting = None

    async def _others_answered(self) -> None:
        while len(self._slots) > 1 and not self._closed:
            self._answered = self._loop.create_future()
            await self._answered

    def broken(self, error: BaseException) -> None:
        _log.error("line: a command from %s failed; closing its connection", self._host, exc_info=error)
        self.abort()

    # -- answers ----------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Write the answers whose turn it is."""
        slots, answers, size_bytes = self._slots, [], 0
        while slots and (answer := slots[0].answer) is not None:
            slot = slots.popleft()
            answers.append(answer)
            size_bytes += slot.size_bytes
            self._begun -= slot.commands
        if not answers:
            return
        if not self._closed:
            self._door.limits.release(self, size_bytes)
            self.write(b"".join(answers))
        if len(slots) <= 1 and self._answered is not None and not self._answered.done():
            self._answered.set_result(None)
        self.resume_reading()
        if not slots and not self._commands:
            self._door.listener.settled()
            self._end_if_done()

    def _end(self, *, lingers: bool = False) -> None:
        """Take nothing more; answer what was taken, then close."""
        self._ending = True
        self._lingers = lingers
        if not self._closed:
            dropped = sum([item.size_bytes for item in self._commands])
            self._door.limits.release(self, dropped + self._unfinished_bytes)
        self._commands.clear()
        self._unfinished_bytes = 0

    def _end_if_done(self) -> None:
        if not self._ending or self._said_goodbye or self._slots or self._commands or self._transport.is_closing():
            return
        self._said_goodbye = True
        self._subscriptions.close(lost=self._left_silently)
        if not self._lingers:
            self._transport.close()
            return
        self._transport.write_eof()
        self._loop.call_later(LINGER_S, self._transport.abort)
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
