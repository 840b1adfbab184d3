"""Lines in, commands out. No socket, no clock; fed with whatever pieces arrive.

    line       ends with \\n or \\r\\n, is at most MAX_LINE_BYTES long; empty lines mean nothing
    payload    follows a line whose command has one, exactly as many bytes as it says, and nothing ends it

What cannot be a command becomes a Refused in its place, so answers keep their order. A fatal one says that where the
next command begins is unknown; nothing after it is looked at.
"""

from collections.abc import Mapping
from typing import NamedTuple

from penstock.wire.line.commands import PLAIN, Syntax, find, takes_option
from penstock.wire.line.words import split_words

MAX_LINE_BYTES = 64 << 10
MAX_SIZE_DIGITS = 10
TOO_MANY_BYTES = 10**MAX_SIZE_DIGITS
MAX_SHOWN_CHARS = 32  # of what somebody sent, when it is repeated to them
NOT_PLAIN = ("", -1, False)

_NO_OPTIONS: Mapping[str, bytes] = {}


class Command(NamedTuple):
    name: str
    words: list[str]
    options: Mapping[str, bytes]
    payload: bytes  # of PUB what follows the line, of PUBLISH the rest of it
    size_bytes: int  # of all of it, as it came


class Refused(NamedTuple):
    code: str
    sentence: str
    fatal: bool
    size_bytes: int


class _Unfit(Exception):
    """A line that is no command; why."""

    def __init__(self, code: str, sentence: str, fatal: bool = False) -> None:
        super().__init__(sentence)
        self.code, self.sentence, self.fatal = code, sentence, fatal


class Parser:
    def __init__(self, max_payload_bytes: int) -> None:
        self._max_payload_bytes = max_payload_bytes
        self._kept = bytearray()
        self._needed_bytes = 0  # nothing is found before so many bytes are kept
        self._failed = False

    @property
    def unfinished_bytes(self) -> int:
        """Of a command that is still arriving."""
        return len(self._kept)

    def receive(self, received: bytes) -> list[Command | Refused]:
        """Everything that is whole now."""
        if self._failed:
            return []
        data: bytes | bytearray = received
        if self._kept:
            self._kept += received
            data = self._kept
            if len(data) < self._needed_bytes or (not self._needed_bytes and b"\n" not in received):
                return self._check_line_length([])
            self._kept = bytearray()
        self._needed_bytes = 0
        found: list[Command | Refused] = []
        position = 0
        while (end := data.find(b"\n", position)) >= 0:
            if end - position > MAX_LINE_BYTES:
                break
            after = self._take(data, position, end, found)
            if after < 0:
                break
            position = after
        self._keep(data, position)
        return self._check_line_length(found)

    def finish(self) -> list[Command | Refused]:
        """No more will come. A last line may lack its end; a payload may not."""
        if self._failed or not self._kept:
            return []
        if self._needed_bytes:
            missing = self._needed_bytes - len(self._kept)
            return [self._fail("truncated", f"the payload ends {missing} bytes before its size")]
        return self.receive(b"\n")

    def _take(self, data: bytes | bytearray, start: int, end: int, found: list[Command | Refused]) -> int:
        """Read the line and what belongs to it; the position after it, or -1 if there is nothing to go on from."""
        line = bytes(data[start : end - 1 if end > start and data[end - 1] == 13 else end])
        payload, after = b"", end + 1
        if b"=" not in line and b'"' not in line and line.isascii():  # most lines; what follows does the same, slowly
            words = line.decode().split()
            name, count, has_payload = PLAIN.get(words[0], NOT_PLAIN) if words else NOT_PLAIN
            if len(words) == count:
                size_bytes = 0
                if has_payload:
                    size = words[-1]
                    size_bytes = int(size) if size.isdigit() and len(size) <= MAX_SIZE_DIGITS else TOO_MANY_BYTES
                if size_bytes <= self._max_payload_bytes:
                    after += size_bytes
                    if after > len(data):
                        self._needed_bytes = after - start
                        return -1
                    if size_bytes:
                        payload = bytes(data[end + 1 : after])
                    found.append(Command(name, words[1:], _NO_OPTIONS, payload, after - start))
                    return after
        try:
            parsed = self._parse(line)
        except _Unfit as unfit:
            if unfit.fatal:
                found.append(self._fail(unfit.code, unfit.sentence))
                return -1
            found.append(Refused(unfit.code, unfit.sentence, False, after - start))
            return after
        if parsed is None:
            return after
        if parsed.payload_bytes >= 0:
            after += parsed.payload_bytes
            if after > len(data):
                self._needed_bytes = after - start
                return -1
            payload = data[end + 1 : after] if type(data) is bytes else bytes(memoryview(data)[end + 1 : after])
        if parsed.refusal is not None:
            found.append(Refused("invalid-request", parsed.refusal, False, after - start))
        else:
            payload = parsed.rest if parsed.rest is not None else payload
            found.append(Command(parsed.name, parsed.words, parsed.options, payload, after - start))
        return after

    def _parse(self, line: bytes) -> "_Line | None":
        halves = line.split(None, 1)
        if not halves:
            return None
        syntax = find(halves[0])
        if syntax is None:
            raise _unknown(halves[0])
        rest = halves[1] if len(halves) == 2 else b""
        if syntax.has_rest:
            word, blank, rest = rest.partition(b" ")
            if not blank:
                raise _Unfit("invalid-request", _usage(syntax))
            return _Line(syntax.name, [_text(word)], _NO_OPTIONS, rest)
        try:
            words = split_words(rest)
        except ValueError as error:
            raise _Unfit("invalid-request", str(error)) from None
        taken = _Line(syntax.name, [], _NO_OPTIONS)
        if syntax.has_payload:
            taken.payload_bytes = self._payload_bytes(syntax, words)
        try:
            taken.words, taken.options = _arguments(syntax, words)
        except _Unfit as unfit:
            if taken.payload_bytes < 0:
                raise
            taken.refusal = unfit.sentence  # what follows is its payload all the same
        return taken

    def _payload_bytes(self, syntax: Syntax, words: list[bytes]) -> int:
        if len(words) < syntax.min_words:
            raise _Unfit("invalid-request", _usage(syntax))
        size = words[syntax.min_words - 1]
        if not size.isdigit():
            raise _Unfit("invalid-request", f"{_shown(size)} is not a size in bytes: {_usage(syntax)}")
        if len(size) > MAX_SIZE_DIGITS or int(size) > self._max_payload_bytes:
            most = self._max_payload_bytes
            raise _Unfit("payload-too-large", f"a payload may have {most} bytes (max_request_bytes)", fatal=True)
        return int(size)

    def _keep(self, data: bytes | bytearray, position: int) -> None:
        if position < len(data) and not self._failed:
            self._kept += memoryview(data)[position:]

    def _check_line_length(self, found: list[Command | Refused]) -> list[Command | Refused]:
        if not self._needed_bytes and len(self._kept) > MAX_LINE_BYTES and not self._failed:
            found.append(self._fail("line-too-long", f"a line may have {MAX_LINE_BYTES} bytes; send more with PUB"))
        return found

    def _fail(self, code: str, sentence: str) -> Refused:
        size_bytes = len(self._kept)
        self._failed = True
        self._kept = bytearray()
        return Refused(code, sentence, True, size_bytes)


class _Line:
    __slots__ = ("name", "options", "payload_bytes", "refusal", "rest", "words")

    def __init__(self, name: str, words: list[str], options: Mapping[str, bytes], rest: bytes | None = None) -> None:
        self.name, self.words, self.options, self.rest = name, words, options, rest
        self.payload_bytes = -1
        self.refusal: str | None = None


def _arguments(syntax: Syntax, words: list[bytes]) -> tuple[list[str], Mapping[str, bytes]]:
    if len(words) == syntax.max_words and not any(b"=" in word for word in words):
        return [_text(word) for word in words], _NO_OPTIONS
    plain: list[str] = []
    options: dict[str, bytes] = {}
    for word in words:
        before, equals, value = word.partition(b"=")
        name = _text(before)
        if not equals or (len(plain) < syntax.min_words and not takes_option(syntax, name)):
            plain.append(_text(word))
        elif not takes_option(syntax, name):
            known = ", ".join(sorted(syntax.options)) or "none"
            raise _Unfit("invalid-request", f"{syntax.name} has no option {_shown(before)}; it has {known}")
        elif name in options:
            raise _Unfit("invalid-request", f"option {name} is given twice")
        else:
            options[name] = value
    if not syntax.min_words <= len(plain) <= syntax.max_words:
        raise _Unfit("invalid-request", _usage(syntax))
    return plain, options


def _text(word: bytes) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise _Unfit("invalid-request", f"{_shown(word)} is not UTF-8") from None


def _usage(syntax: Syntax) -> str:
    return f"usage: {syntax.name} {syntax.usage}".rstrip()


def _unknown(word: bytes) -> _Unfit:
    if any(byte < 32 or byte == 127 for byte in word):
        return _Unfit("not-text", "this is neither a line of text nor the binary protocol", fatal=True)
    return _Unfit("unknown-command", f"there is no command {_shown(word)}; HELP lists what there is")


def _shown(word: bytes) -> str:
    text = word.decode(errors="backslashreplace")
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "..."
