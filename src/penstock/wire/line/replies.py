"""What the text protocol answers, as bytes. Every line ends with CR LF.

OK [<what>]                     done
MSG <id> <size>[ <meta>]        then the payload; what ends it, if anything, is the caller's
END [<what>]                    the last line of an answer of several
GAP <topic> <count>             so many messages were missed
ENDED <subscription> <why>      no more of these will come
ERR <code> <sentence>           not done
"""

from collections.abc import Iterable

from penstock.wire.line.words import quote

OK = b"OK\r\n"
PONG = b"PONG\r\n"
BYE = b"BYE\r\n"

Headers = Iterable[tuple[str, bytes | None]]


def ok(what: str) -> bytes:
    return b"OK %b\r\n" % what.encode()


def message(name: bytes, payload: bytes | None, meta: bytes = b"") -> bytes:
    payload = payload or b""
    return b"MSG %b %d%b\r\n%b" % (name, len(payload), meta, payload)


def meta(key: bytes | None, timestamp_ms: int, headers: Headers, attempt: int = 0) -> bytes:
    """The words of a MSG line that tell of more than the payload."""
    words = [b" timestamp=%d" % timestamp_ms]
    if attempt:
        words.append(b" attempt=%d" % attempt)
    if key is not None:
        words.append(b" key=%b" % quote(key))
    words += [b" %b=%b" % (quote(f"header.{name}".encode()), quote(value or b"")) for name, value in headers]
    return b"".join(words)


def end(what: str = "") -> bytes:
    return f"END {what}".rstrip().encode() + b"\r\n"


def gap(topic: str, count: int) -> bytes:
    return b"GAP %b %d\r\n" % (topic.encode(), count)


def ended(subscription: str, code: str, sentence: str) -> bytes:
    return _line(f"ENDED {subscription} {code} {sentence}")


def error(code: str, sentence: str) -> bytes:
    return _line(f"ERR {code} {sentence}")


def lines(texts: Iterable[str]) -> bytes:
    return b"".join(_line(text) for text in texts)


def _line(text: str) -> bytes:
    return " ".join(text.splitlines()).encode(errors="backslashreplace") + b"\r\n"
