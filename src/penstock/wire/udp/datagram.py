"""One datagram: a line that says where it goes, then one message or several.

    <topic>[ <key>]\\n<payload>                            one message: all the rest, as it is
    *<topic>[ <key>]\\n<line>\\n<line>...                   one message per line that is not empty
    +<topic>[ <key>]\\n<size>[ <key>]\\n<payload>...        messages of any bytes, each after a line with its size

No topic's name begins with * or +. The key is the rest of the first line, blanks included, and that of all messages
but those that bring their own. A line may end with CR LF. Whatever is not like this is refused as a whole.
"""

from typing import NamedTuple

LINES = 0x2A  # *
SIZED = 0x2B  # +
MAX_SIZE_DIGITS = 5  # no datagram is larger


class Malformed(ValueError):
    """Not a datagram of ours; the message says why, in words that are the same for all alike."""


class Datagram(NamedTuple):
    topic: str
    messages: list[tuple[bytes | None, bytes]]  # key, payload


def parse(data: bytes) -> Datagram:
    first, line_break, rest = data.partition(b"\n")
    if not line_break:
        raise Malformed("no line break after the topic")
    form = first[0] if first else 0
    name, blank, key_text = first.removesuffix(b"\r").partition(b" ")
    key = key_text if blank else None
    if form in (LINES, SIZED):
        name = name[1:]
    try:
        topic = name.decode("ascii")
    except UnicodeDecodeError:
        raise Malformed("a topic's name is not ASCII") from None
    if form == LINES:
        return Datagram(topic, [(key, line) for line in rest.replace(b"\r\n", b"\n").split(b"\n") if line])
    if form == SIZED:
        return Datagram(topic, _sized(rest, key))
    return Datagram(topic, [(key, rest)])


def _sized(rest: bytes, common_key: bytes | None) -> list[tuple[bytes | None, bytes]]:
    messages = []
    position = 0
    while position < len(rest):
        end = rest.find(b"\n", position)
        if end < 0:
            raise Malformed("no line break after a size")
        size, blank, key = rest[position:end].removesuffix(b"\r").partition(b" ")
        if not size.isdigit() or len(size) > MAX_SIZE_DIGITS:
            raise Malformed("a size is not a number")
        position = end + 1 + int(size)
        if position > len(rest):
            raise Malformed("a payload is shorter than its size")
        messages.append((key if blank else common_key, rest[end + 1 : position]))
    return messages
