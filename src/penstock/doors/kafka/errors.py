"""The broker's errors in Kafka's terms: one code for each noun of the tree."""

from penstock.model import errors as e

NONE = 0
UNKNOWN_SERVER_ERROR = -1

CODES: dict[type[e.PenstockError], int] = {
    e.OffsetOutOfRange: 1,
    e.CorruptBatch: 2,
    e.UnknownTopic: 3,
    e.UnknownPartition: 3,
    e.TimedOut: 7,
    e.RecordTooLarge: 10,
    e.OffsetMetadataTooLarge: 12,
    e.InvalidTopicName: 17,
    e.IllegalGeneration: 22,
    e.InconsistentProtocol: 23,
    e.InvalidGroup: 24,
    e.UnknownMember: 25,
    e.InvalidSessionTimeout: 26,
    e.RebalanceInProgress: 27,
    e.InvalidTimestamp: 32,
    e.UnsupportedVersion: 35,
    e.TopicExists: 36,
    e.InvalidPartitions: 37,
    e.InvalidReplication: 38,
    e.InvalidAssignment: 39,
    e.InvalidSetting: 40,
    e.InvalidRequest: 42,
    e.LimitReached: 44,
    e.OutOfOrderSequence: 45,
    e.InvalidProducerEpoch: 47,
    e.InvalidTransactionState: 48,
    e.InvalidProducerMapping: 49,
    e.InvalidTransactionTimeout: 50,
    e.ConcurrentTransactions: 51,
    e.StorageFailed: 56,
    e.GroupNotEmpty: 68,
    e.UnknownGroup: 69,
    e.UnknownFetchSession: 70,
    e.InvalidFetchSessionEpoch: 71,
    e.FencedLeaderEpoch: 74,
    e.UnknownLeaderEpoch: 75,
    e.UnsupportedCompression: 76,
    e.GroupFull: 81,
    e.FencedInstance: 82,
    e.GroupSubscribed: 86,
    e.InvalidRecord: 87,
    e.UnstableOffset: 88,
    e.ProducerFenced: 90,
    e.UnknownTopicId: 100,
    e.UnknownTransaction: 105,
    e.StorageFull: 56,
    e.Conflict: 6,
    e.NotAllowed: 29,
    # Nothing of Kafka's protocol reaches these yet; the nearest codes of share groups and of requests.
    e.LeaseLost: 121,
    e.UnknownView: 42,
    e.ViewExists: 42,
    e.InvalidViewName: 42,
    e.UnknownRouter: 42,
    e.RouterExists: 42,
    e.UnknownPipeline: 42,
    e.SlowSubscriber: 42,
    e.StepMismatch: 42,
    e.StepForgotten: 42,
    e.StepAborted: 42,
}

COORDINATOR_NOT_AVAILABLE = 15
INVALID_PRODUCER_EPOCH = 47
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
TOPIC_AUTHORIZATION_FAILED = 29
GROUP_AUTHORIZATION_FAILED = 30
CLUSTER_AUTHORIZATION_FAILED = 31


def error_code(error: e.PenstockError) -> int:
    """The code of the error's own class, or of the nearest one above it."""
    for noun in type(error).__mro__:
        code = CODES.get(noun)
        if code is not None:
            return code
    return UNKNOWN_SERVER_ERROR


def group_error_code(error: e.PenstockError) -> int:
    """As error_code, where what was refused is a group."""
    return GROUP_AUTHORIZATION_FAILED if isinstance(error, e.NotAllowed) else error_code(error)


def cluster_error_code(error: e.PenstockError) -> int:
    """As error_code, where what was refused concerns the cluster."""
    return CLUSTER_AUTHORIZATION_FAILED if isinstance(error, e.NotAllowed) else error_code(error)


def transaction_error_code(error: e.PenstockError, *, knows_fenced: bool = True) -> int:
    """As error_code, where what was asked for is a transaction.

    What could not be stored or has not happened in time is asked for again. Older versions of the requests know no
    other word for a fenced producer than an invalid epoch.
    """
    if isinstance(error, e.NotAllowed):
        return TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if isinstance(error, e.StorageFailed | e.TimedOut):
        return COORDINATOR_NOT_AVAILABLE
    if isinstance(error, e.ProducerFenced) and not knows_fenced:
        return INVALID_PRODUCER_EPOCH
    return error_code(error)
