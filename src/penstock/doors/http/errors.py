"""Every error in HTTP's terms: a status for each noun of the broker's tree, and the errors that only HTTP knows.

All of them leave as `application/problem+json` (RFC 9457); `code` is the noun's name, `detail` is
for a person.
"""

import re

import msgspec

from penstock.model import errors as e

PROBLEM = "application/problem+json"

STATUSES: dict[type[e.PenstockError], int] = {
    e.UnknownTopic: 404,
    e.UnknownTopicId: 404,
    e.UnknownPartition: 404,
    e.TopicExists: 409,
    e.UnknownGroup: 404,
    e.GroupNotEmpty: 409,
    e.GroupSubscribed: 409,
    e.InvalidTopicName: 400,
    e.InvalidPartitions: 400,
    e.InvalidReplication: 400,
    e.InvalidAssignment: 400,
    e.InvalidSetting: 400,
    e.InvalidRequest: 400,
    e.UnsupportedVersion: 400,
    e.NotAllowed: 403,
    e.LimitReached: 429,
    e.CorruptBatch: 400,
    e.InvalidRecord: 422,
    e.RecordTooLarge: 413,
    e.InvalidTimestamp: 422,
    e.UnsupportedCompression: 415,
    e.OffsetOutOfRange: 416,
    e.OffsetMetadataTooLarge: 413,
    e.OutOfOrderSequence: 409,
    e.InvalidProducerEpoch: 409,
    e.ProducerFenced: 409,
    e.InvalidTransactionState: 409,
    e.InvalidProducerMapping: 409,
    e.InvalidTransactionTimeout: 400,
    e.ConcurrentTransactions: 409,
    e.UnknownTransaction: 404,
    e.UnstableOffset: 409,
    e.StepMismatch: 409,
    e.StepForgotten: 409,
    e.StepAborted: 409,
    e.InvalidGroup: 400,
    e.UnknownMember: 404,
    e.IllegalGeneration: 409,
    e.RebalanceInProgress: 409,
    e.InconsistentProtocol: 409,
    e.InvalidSessionTimeout: 400,
    e.FencedInstance: 409,
    e.GroupFull: 429,
    e.UnknownView: 404,
    e.ViewExists: 409,
    e.InvalidViewName: 400,
    e.LeaseLost: 409,
    e.SlowSubscriber: 429,
    e.UnknownRouter: 404,
    e.RouterExists: 409,
    e.UnknownPipeline: 404,
    e.UnknownFetchSession: 404,
    e.InvalidFetchSessionEpoch: 409,
    e.FencedLeaderEpoch: 409,
    e.UnknownLeaderEpoch: 409,
    e.StorageFailed: 503,
    e.StorageFull: 507,
    e.Conflict: 503,
    e.TimedOut: 504,
}
SERVER_ERROR = 500


class Problem(msgspec.Struct, omit_defaults=True):
    """What is wrong, for a person and for a program."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retriable: bool = False


class HttpError(Exception):
    """An error that only HTTP knows; the broker never heard of the request."""

    status = 400
    headers: tuple[tuple[bytes, bytes], ...] = ()


class MalformedRequest(HttpError):
    """The request line, a header, a query parameter or a cookie makes no sense."""


class MalformedBody(HttpError):
    """The body is not what its content type says, or not what this path takes; the detail says where."""


class RequestTimedOut(HttpError):
    """The head or the body did not arrive in time."""

    status = 408


class NoSuchPath(HttpError):
    status = 404


class NoSuchSubscriber(HttpError):
    """The subscriber_id cookie is missing, or names nobody who subscribed to this topic."""

    status = 404


class MethodNotAllowed(HttpError):
    status = 405

    def __init__(self, detail: str, allowed: list[str]) -> None:
        super().__init__(detail)
        self.headers = ((b"allow", ", ".join(allowed).encode()),)


class NotAcceptable(HttpError):
    status = 406


class BodyTooLarge(HttpError):
    status = 413


class UnsupportedMediaType(HttpError):
    status = 415


class HeadTooLarge(HttpError):
    status = 431


class InternalError(HttpError):
    """A fault of the broker; its log tells more."""

    status = 500


class Stopping(HttpError):
    """The server is stopping."""

    status = 503


HTTP_ERRORS: tuple[type[HttpError], ...] = (
    MalformedRequest,
    MalformedBody,
    RequestTimedOut,
    NoSuchPath,
    NoSuchSubscriber,
    MethodNotAllowed,
    NotAcceptable,
    BodyTooLarge,
    UnsupportedMediaType,
    HeadTooLarge,
    InternalError,
    Stopping,
)

_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def title_of(noun: type[Exception]) -> str:
    """`UnknownTopic` is "Unknown topic"."""
    return _CAPITAL.sub(" ", noun.__name__).capitalize()


def status_of(error: Exception) -> int:
    """The status of the error's own class, or of the nearest one above it."""
    if isinstance(error, HttpError):
        return error.status
    for noun in type(error).__mro__:
        status = STATUSES.get(noun)
        if status is not None:
            return status
    return SERVER_ERROR


def problem_of(error: Exception) -> Problem:
    noun = type(error)
    code = noun.__name__
    retriable = bool(getattr(error, "retriable", False))
    return Problem(f"/docs#{code}", title_of(noun), status_of(error), str(error) or title_of(noun), code, retriable)
