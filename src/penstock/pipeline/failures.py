"""What Spark says when something fails, as the one sentence that matters.

Spark wraps a failure of ours in a Python traceback, that in a task's, that in a query's, with a Java stack around each.
Whoever runs a pipeline wants the innermost: what is wrong, and what to do. The rest is for `--verbose`.
"""

import re
from typing import Final

from penstock.model.errors import PenstockError

LONGEST: Final = 600
SEARCHED_CHARS: Final = 200_000
CAUSES_MAX: Final = 20

# The line that ends a Python traceback: `package.module.Noun: what happened`.
_RAISED = re.compile(r"^(?:pyspark\.errors\.\S*?\.|[\w.]*\.)?(\w+): (.+)$")
_TRACEBACK = "Traceback (most recent call last):"
_STATE = re.compile(r"\s*SQLSTATE: \w{5}")
_CLASS = re.compile(r"^\[([A-Z][A-Z0-9_.]+)\]\s*")
_CALLED = re.compile(r"^An error occurred while calling \S+\s*:?\s*(?:[\w.$]+(?:Exception|Error):\s*)?")
_FAILED_QUERY = re.compile(r"\[STREAM_FAILED\] Query \[id = [^\]]*\] terminated with exception: ", re.DOTALL)
# Where Spark begins to tell what nobody asked: offsets, plans, stacks.
_NOISE = ("\n=== Streaming Query ===", "\nDriver stacktrace", "\n\tat ", "\nJVM stacktrace", "\nCaused by:", ";\n'")
_WRAPPERS = ("PySparkRuntimeError", "PythonException", "SparkException", "PySparkAssertionError", "RuntimeError")
_NO_PYTHON: Final = "Python worker failed to connect back"
_EXPLAINED: Final = {
    "JAVA_GATEWAY_EXITED": "Java ended while Spark was starting",
    "CONNECT_URL_NOT_SET": "there is no address of a Spark Connect server",
}
# What to do about it, where Spark does not say so in our words.
_ADVICE: Final = {
    "STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION": "say how late rows may be, with a watermark, or use the mode update",
    "LOCATION_ALREADY_EXISTS": "a table of this name was left by another catalogue: remove it, or choose another place",
}


def explain(error: BaseException) -> str:
    """One line, without a stack trace."""
    if isinstance(error, PenstockError):
        return _line(str(error))
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    text = _text_of(error)
    inner = _innermost_raised(text)
    if inner:
        return _line(inner)
    said = _said_by_spark(text)
    if type(error).__module__.startswith(("pyspark", "py4j", "grpc")):
        return _line(said or type(error).__name__)
    return _line(f"{type(error).__name__}: {said}" if said else type(error).__name__)


def is_slow_start(error: BaseException) -> bool:
    """Whether Spark waited in vain for a Python process that it had started."""
    return not isinstance(error, PenstockError) and _NO_PYTHON in _text_of(error)


def _text_of(error: BaseException) -> str:
    parts = []
    cause: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if cause is None:
            break
        parts.append(str(cause))
        cause = cause.__cause__
    return "\n".join(parts)[:SEARCHED_CHARS]


def _innermost_raised(text: str) -> str | None:
    """What the last Python traceback in the text ends with: with chained errors it is the first one that counts."""
    if _TRACEBACK not in text:
        return None
    tail = text.split(_TRACEBACK)[1:]
    raised = [found for part in tail if (found := _end_of_traceback(part))]
    if not raised:
        return None
    telling = [(noun, said) for noun, said in raised if noun not in _WRAPPERS] or raised
    noun, said = telling[-1]
    return said if noun in _OURS or noun in _WRAPPERS else f"{noun}: {said}"


def _end_of_traceback(part: str) -> tuple[str, str] | None:
    for line in part.splitlines():
        if line.startswith((" ", "\t")) or not line.strip():
            continue
        found = _RAISED.match(line)
        if found:
            return found[1], _without_noise(found[2])
        return None
    return None


def _said_by_spark(text: str) -> str:
    text = _CALLED.sub("", _FAILED_QUERY.sub("", text))
    text = _without_noise(text)
    found = _CLASS.match(text)
    if found and found[1] in _EXPLAINED:
        return _EXPLAINED[found[1]]
    advice = _ADVICE.get(found[1]) if found else None
    return f"{text.rstrip('.')}; {advice}" if advice else text


def _without_noise(text: str) -> str:
    for noise in _NOISE:
        text = text.partition(noise)[0]
    return _STATE.sub("", text).strip()


def _line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _nouns(root: type[PenstockError]) -> set[str]:
    return {root.__name__}.union(*(_nouns(noun) for noun in root.__subclasses__()))


def _ours() -> set[str]:
    import penstock.client.errors
    import penstock.pipeline.errors  # noqa: F401

    return _nouns(PenstockError)


_OURS: Final = _ours()
