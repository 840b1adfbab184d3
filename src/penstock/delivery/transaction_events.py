"""What is asked of transactions and named steps, what they answer, what they want done. Plain nouns."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.delivery.decision import Effect
from penstock.delivery.offsets import TopicPartition

NO_PRODUCER_ID = -1
NO_EPOCH = -1
MAX_EPOCH = 32_767  # of an int16; only a marker ever carries it
LAST_EPOCH = MAX_EPOCH - 1  # the last one that a producer is given: ending it for good still needs one more


class ProducerIdentity(NamedTuple):
    producer_id: int
    epoch: int


class TransactionState(enum.Enum):
    """As Kafka's tools name them."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 7 * 24 * 3600 * 1000  # an id that nobody used for so long is forgotten
    max_ids: int = 100_000
    max_steps: int = 100_000
    step_expiration_ms: int = 30 * 24 * 3600 * 1000  # a name that nobody committed under for so long is forgotten
    step_max_timeout_ms: int = 24 * 3600 * 1000
    retry_ms: int = 100  # what could not be stored is tried again after so long, then twice as long, and so on
    max_retry_ms: int = 5_000


# -- answered ---------------------------------------------------------------------------------------------------


class TransactionDescription(NamedTuple):
    transactional_id: str
    state: TransactionState
    identity: ProducerIdentity
    timeout_ms: int
    started_ms: int  # wall time; -1 when none is under way
    partitions: Sequence[TopicPartition]


class TransactionListing(NamedTuple):
    transactional_id: str
    producer_id: int
    state: TransactionState


class Opened(NamedTuple):
    """A writer of a step; or `done`: the step was committed before with this mark, and there is nothing to write."""

    producer_id: int
    producer_epoch: int
    done: bool = False
    mark: str = ""


class StepDescription(NamedTuple):
    name: str
    committed: Sequence[tuple[int, str]]  # epoch and mark of those that are remembered, oldest first
    open: Sequence[tuple[int, Sequence[str]]]  # epoch and the labels of its writers


# -- done -------------------------------------------------------------------------------------------------------


class Mark(NamedTuple):
    """A marker to be appended to a partition."""

    partition: TopicPartition
    producer_id: int
    epoch: int
    commit: bool


class PendingEnd(NamedTuple):
    """The pending offsets of a group are to be kept, or dropped."""

    group: str
    producer_id: int
    commit: bool


Task = Mark | PendingEnd


@dataclass(slots=True)
class Conclude(Effect):
    """Do these and tell the machine `concluded(token, what is left)`. Each may have been done before."""

    token: int
    tasks: Sequence[Task]
