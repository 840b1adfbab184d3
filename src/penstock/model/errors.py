"""Every error the broker can give a user, as one tree of nouns.

Each door maps each of these to its own code (a test asks every door for all of them). `retriable` tells a
client whether the same call may succeed later; the message is for a person and says what to do.
"""


class PenstockError(Exception):
    """Root of all errors with a meaning for a user."""

    retriable = False


# -- what was asked for does not exist, or exists already ---------------------------------------------------


class UnknownTopic(PenstockError):
    retriable = True  # a topic may be about to be created


class UnknownTopicId(PenstockError):
    retriable = True


class UnknownPartition(PenstockError):
    retriable = True


class TopicExists(PenstockError):
    pass


class UnknownGroup(PenstockError):
    pass


class GroupNotEmpty(PenstockError):
    pass


class GroupSubscribed(PenstockError):
    """The offsets of a topic that the group still reads cannot be deleted."""


# -- what was asked for is not allowed ----------------------------------------------------------------------


class InvalidTopicName(PenstockError):
    pass


class InvalidPartitions(PenstockError):
    pass


class InvalidReplication(PenstockError):
    pass


class InvalidAssignment(PenstockError):
    pass


class InvalidSetting(PenstockError):
    """A setting's name or value is not one we support; the message names both and what is allowed."""


class InvalidRequest(PenstockError):
    pass


class UnsupportedVersion(PenstockError):
    pass


class NotAllowed(PenstockError):
    """The principal may not do this."""


class LimitReached(PenstockError):
    """A named bound of the server is reached; the message names the bound."""


# -- records and offsets ------------------------------------------------------------------------------------


class CorruptBatch(PenstockError):
    """Bytes that should be a record batch are not one, or their checksum is wrong."""


class InvalidRecord(PenstockError):
    """A well-formed batch that breaks a rule of its topic (no key in a compacted topic, for one)."""


class RecordTooLarge(PenstockError):
    pass


class InvalidTimestamp(PenstockError):
    pass


class UnsupportedCompression(PenstockError):
    pass


class OffsetOutOfRange(PenstockError):
    pass


class OffsetMetadataTooLarge(PenstockError):
    pass


# -- idempotent producers -----------------------------------------------------------------------------------


class OutOfOrderSequence(PenstockError):
    pass


class InvalidProducerEpoch(PenstockError):
    pass


# -- transactions and named steps ---------------------------------------------------------------------------


class ProducerFenced(PenstockError):
    """A newer producer with the same transactional id took over, or its transaction timed out."""


class InvalidTransactionState(PenstockError):
    """The transaction is not where this call would make sense: a partition it does not have, an end without a begin."""


class InvalidProducerMapping(PenstockError):
    """The producer id is not the one that its transactional id has."""


class InvalidTransactionTimeout(PenstockError):
    pass


class ConcurrentTransactions(PenstockError):
    """The transaction before this one is still being ended; the same call succeeds in a moment."""

    retriable = True


class UnknownTransaction(PenstockError):
    pass


class UnstableOffset(PenstockError):
    """A transaction that is still open has committed an offset here; which one counts is not known yet."""

    retriable = True


class StepMismatch(PenstockError):
    """The step was committed before, under the same name and epoch, for something else: its mark is another."""


class StepForgotten(PenstockError):
    """The epoch is older than those that the step's name remembers, so nobody can tell whether it is a repeat."""


class StepAborted(PenstockError):
    """A writer that this commit counts on was aborted: by time-out, by somebody's abort, or because it never wrote."""


# -- groups -------------------------------------------------------------------------------------------------


class InvalidGroup(PenstockError):
    pass


class UnknownMember(PenstockError):
    pass


class IllegalGeneration(PenstockError):
    pass


class RebalanceInProgress(PenstockError):
    pass


class InconsistentProtocol(PenstockError):
    pass


class InvalidSessionTimeout(PenstockError):
    pass


class FencedInstance(PenstockError):
    pass


class GroupFull(PenstockError):
    pass


# -- queue views, subscriptions and routers -----------------------------------------------------------------


class UnknownView(PenstockError):
    pass


class ViewExists(PenstockError):
    pass


class InvalidViewName(PenstockError):
    pass


class LeaseLost(PenstockError):
    """The message is no longer this consumer's to settle: its lease ended and somebody else has it."""


class SlowSubscriber(PenstockError):
    """A pub/sub subscription fell further behind than it may, and asked to be ended rather than to miss messages."""


class UnknownRouter(PenstockError):
    pass


class RouterExists(PenstockError):
    pass


class UnknownPipeline(PenstockError):
    pass


# -- fetch sessions and leadership --------------------------------------------------------------------------


class UnknownFetchSession(PenstockError):
    retriable = True


class InvalidFetchSessionEpoch(PenstockError):
    retriable = True


class FencedLeaderEpoch(PenstockError):
    retriable = True


class UnknownLeaderEpoch(PenstockError):
    retriable = True


# -- storage ------------------------------------------------------------------------------------------------


class StorageFailed(PenstockError):
    """The engine could not store or read; nothing of this call was acknowledged."""

    retriable = True


class StorageFull(StorageFailed):
    """No space left; the same write succeeds once there is."""


class Conflict(StorageFailed):
    """Another writer was there: the stream does not end where the caller believed."""


class TimedOut(PenstockError):
    retriable = True
