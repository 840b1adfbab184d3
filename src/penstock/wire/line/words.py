r"""The words of a line, and how a value that is not one plain word is written.

    line      = word *( blank word )
    word      = name | name=value
    value     = any characters but blanks and quotes, or "text in quotes"
    in quotes   \" \\ \n \r \t, and \xNN for one byte; everything else stands for itself

A line that holds no quote is split at its blanks and nothing else is done to it.
"""

import re

_WORD = re.compile(rb'\s*((?:[^\s"]|"(?:[^"\\]|\\.)*")+)')
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_PLAIN = re.compile(rb"[!#-\[\]-~]+")
_NAMED = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_NEEDS_ESCAPE = re.compile(rb'[\x00-\x1f\x7f"\\]')
_NEEDS_ESCAPE_IN_BYTES = re.compile(rb"[^ !#-\[\]-~]")


def split_words(line: bytes) -> list[bytes]:
    """Raises ValueError when a quote is not closed."""
    if b'"' not in line:
        return line.split()
    words, position, stop = [], 0, len(line.rstrip())
    while position < stop:
        found = _WORD.match(line, position)
        if found is None or (found.end() < stop and not line[found.end() : found.end() + 1].isspace()):
            raise ValueError("a quote is not closed")
        words.append(_QUOTED.sub(lambda part: _ESCAPE.sub(_unescape, part[1]), found[1]))
        position = found.end()
    return words


def _unescape(escape: re.Match[bytes]) -> bytes:
    code = escape[1]
    return bytes((int(code[1:], 16),)) if len(code) == 3 else _NAMED.get(code, code)


def quote(value: bytes) -> bytes:
    """The value as one word that `split_words` gives back."""
    if _PLAIN.fullmatch(value):
        return value
    try:
        value.decode()
    except UnicodeDecodeError:
        return b'"%b"' % _NEEDS_ESCAPE_IN_BYTES.sub(_escape, value)
    return b'"%b"' % _NEEDS_ESCAPE.sub(_escape, value)


def _escape(byte: re.Match[bytes]) -> bytes:
    return b"\\" + byte[0] if byte[0] in b'"\\' else b"\\x%02x" % ord(byte[0])
