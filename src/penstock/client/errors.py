"""What can go wrong between a client and its server, beside the broker's own errors.

The server names its errors by the nouns of `model/errors.py`; here a name becomes the same class again, so that
`except penstock.LeaseLost` means on this side what it meant on that one.
"""

from penstock.model import errors as nouns
from penstock.model.errors import PenstockError


class ClientError(PenstockError):
    """Root of what the client says by itself."""


class Unreachable(ClientError):
    """No server answered within the time; the message names the addresses and the last reason."""

    retriable = True


class WrongDoor(Unreachable):
    """Somebody is there and does not take this protocol: most likely this is the address of another door."""


class Disconnected(ClientError):
    """The connection broke while an answer was due: the call may have happened or not."""

    retriable = True


class ClientClosed(ClientError):
    """This client, or this subscription, was closed."""


class BufferFull(ClientError):
    """`publish_nowait` found no room; `publish` would have waited for it."""

    retriable = True


class ProtocolBroken(ClientError):
    """The peer does not speak Penstock's binary protocol."""


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()


_BY_NAME: dict[str, type[PenstockError]] = {
    _plain(name): noun
    for name, noun in vars(nouns).items()
    if isinstance(noun, type) and issubclass(noun, PenstockError)
}


def error_of(code: str, message: str, retriable: bool = False) -> PenstockError:
    """The error that a failure of this code is. A code that is not known here is a plain PenstockError."""
    noun = _BY_NAME.get(_plain(code))
    if noun is None:
        error = PenstockError(f"{code}: {message}")
        error.retriable = retriable
        return error
    return noun(message)
