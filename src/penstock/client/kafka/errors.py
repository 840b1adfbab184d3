"""What can go wrong between a client and a server, in words that tell a person what to do next."""

from typing import NamedTuple


class ClientError(Exception):
    """Root of everything this client raises."""


class Unreachable(ClientError):
    """No connection could be made."""


class Disconnected(ClientError):
    """The connection broke while an answer was due. What was asked may or may not have happened."""


class TimedOut(ClientError):
    """No answer came in time. What was asked may or may not have happened."""


class Unsupported(ClientError):
    """The server and this client share no version of a call."""


class Missing(ClientError):
    """A topic, partition or group that does not exist."""


class Invalid(ClientError):
    """What was asked for makes no sense to this client; it was not sent."""


class Refused(ClientError):
    """The server answered with an error code."""

    def __init__(self, code: int, what: str, message: str | None = None) -> None:
        known = ERRORS.get(code, _UNKNOWN)
        self.code = code
        self.name = known.name if known is not _UNKNOWN else f"ERROR_{code}"
        self.retriable = known.retriable
        self.refresh = known.refresh
        reason = (message or known.reason).strip().rstrip(".")
        hint = f"; {known.hint}" if known.hint else ""
        super().__init__(f"{what}: {reason} ({self.name}){hint}")


class ErrorCode(NamedTuple):
    name: str
    reason: str
    hint: str = ""
    retriable: bool = False
    refresh: bool = False  # the address was wrong: ask for metadata or the coordinator again first


_UNKNOWN = ErrorCode("UNKNOWN", "the server gave an error code that this client does not know")

# Code: name, what it means, what to do about it. https://kafka.apache.org/protocol#protocol_error_codes
ERRORS: dict[int, ErrorCode] = {
    -1: ErrorCode("UNKNOWN_SERVER_ERROR", "the server failed unexpectedly", "look into the server's log"),
    1: ErrorCode("OFFSET_OUT_OF_RANGE", "the offset is outside what the partition holds"),
    2: ErrorCode("CORRUPT_MESSAGE", "the records were damaged on the way", retriable=True),
    3: ErrorCode(
        "UNKNOWN_TOPIC_OR_PARTITION", "there is no such topic or partition", "'penstock topic list' shows what there is"
    ),
    5: ErrorCode("LEADER_NOT_AVAILABLE", "the partition has no leader yet", retriable=True, refresh=True),
    6: ErrorCode("NOT_LEADER_OR_FOLLOWER", "the partition has moved", retriable=True, refresh=True),
    7: ErrorCode("REQUEST_TIMED_OUT", "the server could not finish in time", retriable=True),
    8: ErrorCode("BROKER_NOT_AVAILABLE", "the server is not available", retriable=True, refresh=True),
    9: ErrorCode("REPLICA_NOT_AVAILABLE", "the replica is not available", retriable=True, refresh=True),
    10: ErrorCode(
        "MESSAGE_TOO_LARGE", "the message is larger than the topic allows", "raise the topic's max.message.bytes"
    ),
    13: ErrorCode("NETWORK_EXCEPTION", "the server was disconnected", retriable=True, refresh=True),
    14: ErrorCode("COORDINATOR_LOAD_IN_PROGRESS", "the group is still being loaded", retriable=True),
    15: ErrorCode("COORDINATOR_NOT_AVAILABLE", "the group has no coordinator yet", retriable=True, refresh=True),
    16: ErrorCode("NOT_COORDINATOR", "the group has moved", retriable=True, refresh=True),
    17: ErrorCode(
        "INVALID_TOPIC_EXCEPTION",
        "the topic name is not allowed",
        "use at most 249 letters, digits, '.', '_' and '-'",
    ),
    18: ErrorCode("RECORD_LIST_TOO_LARGE", "the batch is larger than a segment", "send smaller batches"),
    19: ErrorCode("NOT_ENOUGH_REPLICAS", "too few replicas are in sync", retriable=True),
    20: ErrorCode("NOT_ENOUGH_REPLICAS_AFTER_APPEND", "too few replicas have the records", retriable=True),
    22: ErrorCode("ILLEGAL_GENERATION", "the group has moved on without this member"),
    23: ErrorCode("INCONSISTENT_GROUP_PROTOCOL", "the members of the group use another way of assignment"),
    24: ErrorCode("INVALID_GROUP_ID", "the group id is not allowed"),
    25: ErrorCode("UNKNOWN_MEMBER_ID", "the group does not know this member (any more)"),
    26: ErrorCode("INVALID_SESSION_TIMEOUT", "the session time-out is outside what the server allows"),
    27: ErrorCode("REBALANCE_IN_PROGRESS", "the group is rebalancing"),
    28: ErrorCode("INVALID_COMMIT_OFFSET_SIZE", "the metadata of the commit is too large"),
    29: ErrorCode("TOPIC_AUTHORIZATION_FAILED", "not allowed for this topic"),
    30: ErrorCode("GROUP_AUTHORIZATION_FAILED", "not allowed for this group"),
    31: ErrorCode("CLUSTER_AUTHORIZATION_FAILED", "not allowed on this server"),
    32: ErrorCode("INVALID_TIMESTAMP", "the record's timestamp is not allowed in this topic"),
    35: ErrorCode("UNSUPPORTED_VERSION", "the server does not support this call"),
    36: ErrorCode("TOPIC_ALREADY_EXISTS", "the topic exists already", "change it with 'penstock topic alter'"),
    37: ErrorCode("INVALID_PARTITIONS", "the number of partitions is not allowed", "it can only grow"),
    38: ErrorCode("INVALID_REPLICATION_FACTOR", "the replication factor is not allowed"),
    39: ErrorCode("INVALID_REPLICA_ASSIGNMENT", "the replica assignment is not allowed"),
    40: ErrorCode("INVALID_CONFIG", "a topic setting or its value is not allowed"),
    41: ErrorCode("NOT_CONTROLLER", "the controller has moved", retriable=True, refresh=True),
    42: ErrorCode("INVALID_REQUEST", "the server finds the request invalid"),
    43: ErrorCode("UNSUPPORTED_FOR_MESSAGE_FORMAT", "the topic's message format is too old"),
    44: ErrorCode("POLICY_VIOLATION", "a policy of the server forbids it"),
    45: ErrorCode("OUT_OF_ORDER_SEQUENCE_NUMBER", "records before these have been lost"),
    46: ErrorCode("DUPLICATE_SEQUENCE_NUMBER", "the records are stored already"),
    47: ErrorCode("INVALID_PRODUCER_EPOCH", "another producer has taken this one's place"),
    56: ErrorCode("KAFKA_STORAGE_ERROR", "the server cannot store", "look into the server's log", True, True),
    58: ErrorCode("SASL_AUTHENTICATION_FAILED", "the server does not accept the user or password"),
    59: ErrorCode("UNKNOWN_PRODUCER_ID", "the server has forgotten this producer"),
    60: ErrorCode("REASSIGNMENT_IN_PROGRESS", "the partitions are being moved"),
    61: ErrorCode("DELEGATION_TOKEN_AUTH_DISABLED", "not supported by the server"),
    68: ErrorCode(
        "NON_EMPTY_GROUP", "the group has members", "stop its consumers first; 'penstock group describe' shows them"
    ),
    69: ErrorCode("GROUP_ID_NOT_FOUND", "there is no such group", "'penstock group list' shows what there is"),
    70: ErrorCode("FETCH_SESSION_ID_NOT_FOUND", "the fetch session is gone", retriable=True),
    72: ErrorCode("LISTENER_NOT_FOUND", "the partition's leader has no such listener", retriable=True, refresh=True),
    73: ErrorCode("TOPIC_DELETION_DISABLED", "the server does not delete topics"),
    74: ErrorCode("FENCED_LEADER_EPOCH", "the partition has moved", retriable=True, refresh=True),
    75: ErrorCode("UNKNOWN_LEADER_EPOCH", "the partition is about to move", retriable=True, refresh=True),
    76: ErrorCode("UNSUPPORTED_COMPRESSION_TYPE", "the server does not support this compression"),
    78: ErrorCode("OFFSET_NOT_AVAILABLE", "the offset is not known yet", retriable=True),
    79: ErrorCode("MEMBER_ID_REQUIRED", "the group wants the member to join with the id it was given"),
    81: ErrorCode("GROUP_MAX_SIZE_REACHED", "the group has as many members as the server allows"),
    82: ErrorCode("FENCED_INSTANCE_ID", "another member has taken this static member's place"),
    86: ErrorCode("GROUP_SUBSCRIBED_TO_TOPIC", "the group still reads the topic", "stop its consumers first"),
    87: ErrorCode("INVALID_RECORD", "the topic does not take such a record", "a compacted topic needs keys"),
    89: ErrorCode("THROTTLING_QUOTA_EXCEEDED", "too many changes at once", retriable=True),
    100: ErrorCode("UNKNOWN_TOPIC_ID", "there is no such topic", retriable=True, refresh=True),
}


def check(code: int, what: str, message: str | None = None) -> None:
    """Raise Refused unless the code is 0."""
    if code:
        raise Refused(code, what, message)
