"""Penstock: one durable log, every protocol, and Spark at the end of the pipe.

What users need is here by name and is imported when it is first asked for: `penstock serve` needs none of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock._compiled import compiled, obey_environment

if TYPE_CHECKING:
    from penstock.client.admin import Binding, Match, Queue, Router, Topic, TopicDescription
    from penstock.client.client import Client
    from penstock.client.errors import (
        BufferFull,
        ClientClosed,
        ClientError,
        Disconnected,
        ProtocolBroken,
        Unreachable,
        WrongDoor,
    )
    from penstock.client.groups import Bounds, Group, GroupListing, GroupOffset, Member
    from penstock.client.log import LogSubscription
    from penstock.client.message import Message, Outgoing
    from penstock.client.pipelines import Pipeline
    from penstock.client.push import PubSubSubscription
    from penstock.client.queue import QueueSubscription, Step
    from penstock.client.steps import NamedStep, StepDescription, StepWriter
    from penstock.client.sync import SyncClient
    from penstock.client.sync_subscription import SyncMessage, SyncSubscription
    from penstock.model.errors import (
        Conflict,
        GroupNotEmpty,
        GroupSubscribed,
        InvalidRecord,
        InvalidRequest,
        InvalidSetting,
        InvalidTopicName,
        InvalidViewName,
        LeaseLost,
        LimitReached,
        NotAllowed,
        OffsetOutOfRange,
        PenstockError,
        ProducerFenced,
        RecordTooLarge,
        RouterExists,
        SlowSubscriber,
        StepAborted,
        StepForgotten,
        StepMismatch,
        StorageFailed,
        StorageFull,
        TimedOut,
        TopicExists,
        UnknownGroup,
        UnknownPartition,
        UnknownPipeline,
        UnknownRouter,
        UnknownTopic,
        UnknownTransaction,
        UnknownView,
        ViewExists,
    )
    from penstock.model.message import Placed

__all__ = [
    "Binding", "Bounds", "BufferFull", "Client", "ClientClosed", "ClientError", "Conflict", "Disconnected", "Group",
    "GroupListing", "GroupNotEmpty", "GroupOffset", "GroupSubscribed", "InvalidRecord", "InvalidRequest",
    "InvalidSetting", "InvalidTopicName", "InvalidViewName", "LeaseLost", "LimitReached", "LogSubscription", "Match",
    "Member", "Message", "NamedStep", "NotAllowed", "OffsetOutOfRange", "Outgoing", "PenstockError", "Pipeline",
    "Placed", "ProducerFenced", "ProtocolBroken", "PubSubSubscription", "Queue", "QueueSubscription", "RecordTooLarge",
    "Router", "RouterExists", "SlowSubscriber", "Step", "StepAborted", "StepDescription", "StepForgotten",
    "StepMismatch", "StepWriter", "StorageFailed", "StorageFull", "SyncClient", "SyncMessage", "SyncSubscription",
    "TimedOut", "Topic", "TopicDescription", "TopicExists", "UnknownGroup", "UnknownPartition", "UnknownPipeline",
    "UnknownRouter", "UnknownTopic", "UnknownTransaction", "UnknownView", "Unreachable", "ViewExists", "WrongDoor",
    "__version__", "compiled",
]  # fmt: skip

__version__ = "0.1.0"

_HOMES = {
    "penstock.client.admin": ("Binding", "Match", "Queue", "Router", "Topic", "TopicDescription"),
    "penstock.client.client": ("Client",),
    "penstock.client.errors": (
        "BufferFull", "ClientClosed", "ClientError", "Disconnected", "ProtocolBroken", "Unreachable",
        "WrongDoor",
    ),
    "penstock.client.groups": ("Bounds", "Group", "GroupListing", "GroupOffset", "Member"),
    "penstock.client.log": ("LogSubscription",),
    "penstock.client.message": ("Message", "Outgoing"),
    "penstock.client.pipelines": ("Pipeline",),
    "penstock.client.push": ("PubSubSubscription",),
    "penstock.client.queue": ("QueueSubscription", "Step"),
    "penstock.client.steps": ("NamedStep", "StepDescription", "StepWriter"),
    "penstock.client.sync": ("SyncClient",),
    "penstock.client.sync_subscription": ("SyncMessage", "SyncSubscription"),
    "penstock.model.message": ("Placed",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_OTHERS = "penstock.model.errors"

obey_environment()


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME_OF.get(name, _OTHERS)), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
