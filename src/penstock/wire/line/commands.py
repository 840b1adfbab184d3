"""The commands of the text protocol, as one table: the parser checks lines against it and HELP prints it."""

from collections.abc import Mapping
from typing import NamedTuple

ANY = "*"  # an option of any name
UNLIMITED_WORDS = 1 << 30


class Syntax(NamedTuple):
    """How a command is written. Options are `name=value` after the words; a name that ends in a dot begins many."""

    name: str
    usage: str
    summary: str
    min_words: int
    max_words: int
    options: Mapping[str, str] = {}
    has_payload: bool = False  # its last word is a size, and so many bytes follow the line
    has_rest: bool = False  # after its last word comes the rest of the line as it is
    example: str = ""


_META = {"meta": "yes: MSG lines tell key, timestamp and headers too"}
_FILTER = {
    "key": "only messages with this key",
    "pattern": "only keys like this: words between dots, * is one word, # any number",
    "header.": "only messages with this header, as in header.type=invoice",
}
_VIEW = {
    "guarantee": "at-least-once, at-most-once or exactly-once",
    "max_attempts": "deliveries before a message goes to the dead letters",
    "retry_initial": "milliseconds until the first retry; then longer and longer",
    "dead_letter": "topic for what failed for good",
    "delay": "every message waits so many milliseconds first",
    "ttl": "milliseconds after which a message is dead",
    "max_priority": "1 to 9: higher priorities first",
    "ordered_by_key": "yes: one key is with one consumer at a time, in order",
    "single_active": "yes: one consumer gets everything, the next one when it leaves",
}

TABLE = (
    Syntax(
        "PUB",
        "<topic> <size> [options]  then <size> bytes",
        "publish bytes of any kind; answers OK <offset> once they are stored",
        2,
        2,
        {
            "key": "the message's key",
            "header.": "a header, as in header.type=invoice",
            "delay": "milliseconds until queues hand it out",
            "priority": "0 to 9, for queues with priorities",
            "ttl": "milliseconds after which queues take it for dead",
            "timestamp": "milliseconds since 1970 instead of now",
            "partition": "a partition instead of the one that its key or chance would choose",
            "producer": "a name under which you count your messages; needs seq",
            "seq": "a rising number: what comes twice is stored once",
            "acks": "none, leader or all (the default)",
        },
        has_payload=True,
        example="PUB orders 5 key=42",
    ),
    Syntax(
        "PUBLISH",
        "<topic> <message>",
        "publish the rest of the line",
        1,
        1,
        has_rest=True,
        example="PUBLISH orders hello, world",
    ),
    Syntax(
        "FETCH",
        "<topic> <offset> [options]",
        "read the message at an offset (partition:offset where there are several)",
        2,
        2,
        {
            "count": "read up to so many; each ends with a line break, the last line is END <next offset>",
            "wait": "milliseconds to wait for the first if it is not there yet",
            **_META,
        },
        example="FETCH orders 0 count=10",
    ),
    Syntax(
        "SUBSCRIBE",
        "<topic>/pubsub | <topic>/log | <topic>/queue[/<view>] [options]",
        "get messages as they come: all from now on, all in order, or each with one of many",
        1,
        1,
        {
            **_FILTER,
            **_META,
            "from": "log, new queue: earliest, latest; log: an offset",
            "group": "log: begin where this group committed",
            "behind": "pubsub: how many messages it may fall behind before it misses some",
            "overflow": "pubsub: drop-oldest or disconnect when it is too slow",
            "credit": "queue: how many unsettled messages at once",
            "lease": "queue: milliseconds to settle one before it goes to another",
            "view": "queue: the view's name, as in orders/queue/<view>",
            **{name: f"new queue: {text}" for name, text in _VIEW.items()},
        },
        example="SUBSCRIBE orders/queue credit=10",
    ),
    Syntax("UNSUBSCRIBE", "<topic>/<kind>[/<view>]", "end a subscription; unsettled messages go to others", 1, 1),
    Syntax("ACK", "<message id>", "this message is done", 1, 1),
    Syntax("NACK", "<message id> [delay in ms]", "it failed; deliver it again later", 1, 2),
    Syntax("REJECT", "<message id>", "it failed for good; to the dead letters", 1, 1),
    Syntax("RELEASE", "<message id>", "not tried; back to its place in the queue", 1, 1),
    Syntax("EXTEND", "<message id> [lease in ms]", "still working on it; the lease begins anew", 1, 2),
    Syntax("STATUS", "<topic>/queue[/<view>]", "count a queue's messages", 1, 1),
    Syntax("COMMIT", "<group> <topic> <offset>", "the group goes on from this offset next time", 3, 3),
    Syntax("COMMITTED", "<group> <topic>", "where the group goes on", 2, 2),
    Syntax(
        "CREATE",
        "<topic> [partitions=<n>] [<setting>=<value>]",
        "make a topic",
        1,
        1,
        {"partitions": "how many", ANY: "any topic setting, as in retention.ms=60000"},
        example="CREATE orders partitions=3 retention.ms=86400000",
    ),
    Syntax("DELETE", "<topic>", "delete a topic and everything in it", 1, 1),
    Syntax("TOPICS", "", "list the topics", 0, 0),
    Syntax("PING", "", "answers PONG", 0, 0),
    Syntax("AUTH", "<user> <password>", "log in", 1, 2),
    Syntax("HELP", "[command]", "this list, or all about one command", 0, 1, example="HELP SUBSCRIBE"),
    Syntax("QUIT", "", "close the connection", 0, 0),
)

# The two spellings that people type are found without further ado.
SPELLINGS = {spelling: syntax for syntax in TABLE for spelling in (syntax.name, syntax.name.lower())}
# Of commands whose number of words is fixed: name, that number with the name counted, whether a payload follows.
PLAIN = {
    spelling: (syntax.name, 1 + syntax.min_words, syntax.has_payload)
    for spelling, syntax in SPELLINGS.items()
    if syntax.min_words == syntax.max_words and not syntax.has_rest
}


def find(word: bytes) -> Syntax | None:
    return SPELLINGS.get(word.decode(errors="replace").upper())


def takes_option(syntax: Syntax, name: str) -> bool:
    options = syntax.options
    return name in options or ANY in options or (f"{name.partition('.')[0]}." in options and not name.endswith("."))


def help_lines(topic: str | None = None) -> list[str]:
    """The whole list, or one command with its options. Raises KeyError."""
    if topic is not None:
        syntax = SPELLINGS[topic.upper()]
        lines = [f"{syntax.name} {syntax.usage}".rstrip(), f"    {syntax.summary}"]
        if syntax.options:
            width = max(map(len, map(_shown, syntax.options)))
            lines += [f"    {_shown(name):{width}}  {text}" for name, text in syntax.options.items()]
        if syntax.example:
            lines.append(f"    example: {syntax.example}")
        return lines
    left = [f"{syntax.name} {syntax.usage}".rstrip() for syntax in TABLE]
    lines = []
    for written, syntax in zip(left, TABLE, strict=True):
        lines += [written, f"    {syntax.summary}"]
    return [*lines, 'A value with blanks goes in quotes: key="order 1". HELP <command> tells its options.']


def _shown(option: str) -> str:
    return {ANY: "<setting>="}.get(option, f"{option}<name>=" if option.endswith(".") else f"{option}=")
