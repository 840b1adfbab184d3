"""The messages of the binary protocol, one class each, in the order in which their fields stand on the wire.

A body is a MessagePack array of the fields; fields may be added at its end, and a reader passes over those it does not
know. Record batches travel as `bin`, byte for byte as Kafka's format 2 has them and as they are stored.

    request           answered by          a request is answered exactly once, under its correlation id, in any order
    reply, failure    end of a request
    push              comes any time, under the correlation id of the request that subscribed
"""

from typing import Annotated, ClassVar, Final

import msgspec

VERSION = 1

MAX_BATCHES: Final = 10_000  # of one publish; messages of one step
MAX_DESCRIBED: Final = 1_000  # topics of one DescribeTopics


class Message(msgspec.Struct, array_like=True):
    KIND: ClassVar[int] = 0


Pair = tuple[str, bytes | None]  # a record header
Receipt = tuple[int, int]  # place, lease number
MatchFields = dict[str, str | bool | dict[str, str]]  # key, pattern, headers, any_header: what is given
Settings = dict[str, int | float | str | bool | None]  # of a queue view, by their names in docs/queues.md


# -- the session --------------------------------------------------------------------------------------------


class Hello(Message):
    KIND: ClassVar[int] = 0x01
    version: int
    client: str
    user: str | None = None
    secret: str | None = None


class Welcome(Message):
    KIND: ClassVar[int] = 0x81
    version: int
    server: str
    cluster_id: str
    max_frame_bytes: int


class Ping(Message):
    KIND: ClassVar[int] = 0x02


class Done(Message):
    """The reply of every request that has nothing to tell; `count` where something is counted."""

    KIND: ClassVar[int] = 0x82
    count: int = 0


class Failure(Message):
    """The request failed, or a subscription ended. `code` is the name of the error as docs/protocol.md lists them."""

    KIND: ClassVar[int] = 0xFF
    code: str
    message: str
    retriable: bool = False


# -- topics -------------------------------------------------------------------------------------------------


class FindTopic(Message):
    """Is there such a topic? `create`: make it if the server makes topics on first use."""

    KIND: ClassVar[int] = 0x10
    name: str
    create: bool = True


class ListTopics(Message):
    """`internal`: the server's own too."""

    KIND: ClassVar[int] = 0x11
    internal: bool = False


class TopicInfo(msgspec.Struct, array_like=True):
    name: str
    partitions: int
    settings: dict[str, str]  # those that were set for this topic
    internal: bool = False


class Topics(Message):
    """The reply to FindTopic, ListTopics and CreateTopic."""

    KIND: ClassVar[int] = 0x91
    topics: list[TopicInfo]


class CreateTopic(Message):
    KIND: ClassVar[int] = 0x12
    name: str
    partitions: int | None = None
    settings: dict[str, str] = {}


class DeleteTopic(Message):
    KIND: ClassVar[int] = 0x13
    name: str


class AlterTopic(Message):
    """Set these settings, None takes one back; grow to so many partitions."""

    KIND: ClassVar[int] = 0x14
    name: str
    settings: dict[str, str | None] = {}
    partitions: int | None = None


class DescribeTopics(Message):
    """Everything about these topics, settings at their defaults included. Those that are not there are left out."""

    KIND: ClassVar[int] = 0x15
    names: Annotated[list[str], msgspec.Meta(max_length=MAX_DESCRIBED)]
    settings: bool = True


class PartitionInfo(msgspec.Struct, array_like=True):
    start: int
    end: int
    leader: int  # a server's node id
    replicas: list[int]
    in_sync: list[int]


class SwapTopics(Message):
    """Let two topics change their names with each other, if the first ends where the caller believes it does: what was
    made of it counts from then on. Groups' offsets for the name are replaced in the same moment by those given.
    """

    KIND: ClassVar[int] = 0x16
    name: str
    other: str
    ends: list[int]  # of each partition of `name`; conflict if one has grown
    offsets: list[tuple[str, int, int]] = []  # group, partition, next offset to read
    topic_id: str | None = None  # of `name` until now; conflict if it is another, so a repeat does not swap back


class SettingInfo(msgspec.Struct, array_like=True):
    name: str
    value: str
    source: str  # topic, server or default


class TopicDescription(msgspec.Struct, array_like=True):
    name: str
    topic_id: str
    internal: bool
    partitions: list[PartitionInfo]  # in their order, from 0 on
    settings: list[SettingInfo]


class TopicDescriptions(Message):
    KIND: ClassVar[int] = 0x95
    topics: list[TopicDescription]


# -- publishing ---------------------------------------------------------------------------------------------


class TakeProducerId(Message):
    KIND: ClassVar[int] = 0x20


class ProducerId(Message):
    KIND: ClassVar[int] = 0xA0
    producer_id: int
    epoch: int


class Batch(msgspec.Struct, array_like=True):
    topic: str
    partition: int
    batch: bytes  # one record batch; in a request a view into the frame


class IncomingBatch(msgspec.Struct, array_like=True):
    """As Batch, decoded without a copy."""

    topic: str
    partition: int
    batch: memoryview


class Publish(Message):
    """acks: 0 none (no reply, only a Failure if it was refused), 1 leader, -1 all.

    The order is that of the request and of the connection.
    """

    KIND: ClassVar[int] = 0x21
    acks: int
    batches: list[Batch]


class IncomingPublish(Message):
    KIND: ClassVar[int] = 0x21
    acks: int
    batches: Annotated[list[IncomingBatch], msgspec.Meta(max_length=MAX_BATCHES)]


class Stored(msgspec.Struct, array_like=True):
    """One batch of a publish: where it went, or why it did not."""

    base_offset: int
    append_time_ms: int = -1
    error: str | None = None
    message: str = ""
    retriable: bool = False


class Published(Message):
    KIND: ClassVar[int] = 0xA1
    results: list[Stored]


# -- named steps --------------------------------------------------------------------------------------------


class OpenWriter(Message):
    """A writer of the step (name, epoch). What it publishes, in transactional batches under the producer id that it is
    given, nobody sees until the step is committed and the commit names it.
    """

    KIND: ClassVar[int] = 0x24
    step: str
    epoch: int
    writer: str  # for people; two of the same label are two writers
    timeout_ms: int = 3_600_000  # the step is aborted when nothing was heard of it for so long


class Writer(Message):
    """`done`: the step was committed before, with this mark; there is nothing to write."""

    KIND: ClassVar[int] = 0xA4
    producer_id: int
    producer_epoch: int
    done: bool = False
    mark: str = ""


class CommitStep(Message):
    """Show what these writers wrote, all at once, and abort the others. Once for a name and epoch: Done(1), or Done(0)
    if it was done before with the same mark; with another mark it fails.
    """

    KIND: ClassVar[int] = 0x25
    step: str
    epoch: int
    writers: list[int]  # producer ids
    mark: str = ""
    offsets: list[tuple[str, str, int, int]] = []  # group, topic, partition, next offset to read


class AbortStep(Message):
    """Abort what is written under this epoch and not committed. Done(number of writers)."""

    KIND: ClassVar[int] = 0x26
    step: str
    epoch: int


class DescribeStep(Message):
    KIND: ClassVar[int] = 0x27
    step: str


class StepDescription(Message):
    KIND: ClassVar[int] = 0xA7
    step: str
    committed: list[tuple[int, str]]  # epoch and mark of those that are remembered, oldest first
    open: list[tuple[int, list[str]]]  # epoch and its writers


class ForgetStep(Message):
    """Forget everything about a name; what it has open is aborted."""

    KIND: ClassVar[int] = 0x28
    step: str


# -- reading the log ----------------------------------------------------------------------------------------


class ListOffsets(Message):
    """Where a partition begins and ends; with a time, the first record at or after it (its end if there is none)."""

    KIND: ClassVar[int] = 0x30
    topic: str
    partition: int
    timestamp_ms: int | None = None


class Offsets(Message):
    KIND: ClassVar[int] = 0xB0
    start: int
    end: int
    found: int = -1
    stable: int = -1  # what lies before it is decided: no transaction is open there


class Fetch(Message):
    """Stored batches from the one that holds `offset`, at least one if there is any; waits for the first."""

    KIND: ClassVar[int] = 0x31
    topic: str
    partition: int
    offset: int
    max_bytes: int
    wait_ms: int
    committed: bool = True  # nothing of transactions that are open or were aborted


class Fetched(Message):
    KIND: ClassVar[int] = 0xB1
    batches: bytes  # whole batches back to back; the first may hold records before `offset`
    next_offset: int
    start: int
    end: int


class Commit(Message):
    """Offsets that a group has read up to."""

    KIND: ClassVar[int] = 0x32
    group: str
    offsets: list[tuple[str, int, int]]  # topic, partition, next offset to read


class Committed(Message):
    """What a group committed, of one topic or of all. Replied with Commits."""

    KIND: ClassVar[int] = 0x33
    group: str
    topic: str | None = None


class Commits(Message):
    KIND: ClassVar[int] = 0xB3
    offsets: list[tuple[str, int, int]]


class LocateLog(Message):
    """Where a partition's bytes lie, for a reader on the same machine that wants to read them itself."""

    KIND: ClassVar[int] = 0x34
    topic: str
    partition: int
    start: int
    end: int


class LogFile(msgspec.Struct, array_like=True):
    """A file of whole batches back to back."""

    path: str
    base_offset: int
    end_offset: int
    size_bytes: int  # of it, so much is to be read
    position: int = 0  # the first batch that holds an offset of the range begins here


class LogLocation(Message):
    """`files` is empty when the log is not in files. The aborted ranges are inclusive."""

    KIND: ClassVar[int] = 0xB4
    files: list[LogFile]
    aborted: list[tuple[int, int, int]]  # producer id, first offset, last offset


# -- subscriptions that push --------------------------------------------------------------------------------


class SubscribePubSub(Message):
    """Everything from now on, at most `credit` messages ahead of AddCredit. Replied with Done, then Records come."""

    KIND: ClassVar[int] = 0x40
    topic: str
    credit: int
    matches: list[MatchFields] = []
    max_behind: int = 10_000
    overflow: str = "drop-oldest"  # or disconnect


class SubscribeLog(Message):
    """Records from the given offsets on (partitions not named: from the earliest or the latest), filtered."""

    KIND: ClassVar[int] = 0x41
    topic: str
    credit: int
    offsets: dict[int, int] = {}
    timestamp_ms: int | None = None
    earliest: bool = True
    matches: list[MatchFields] = []


class Records(Message):
    """A push: batches of opened records (offsets may have gaps), and how many were dropped before them."""

    KIND: ClassVar[int] = 0xC0
    batches: list[Batch]
    gap: int = 0


class AddCredit(Message):
    """No reply. `subscription` is the correlation id of the request that subscribed."""

    KIND: ClassVar[int] = 0x42
    subscription: int
    credit: int


class Unsubscribe(Message):
    KIND: ClassVar[int] = 0x43
    subscription: int


# -- queue views --------------------------------------------------------------------------------------------


class SubscribeQueue(Message):
    """`credit` unsettled messages at once; settling gives credit back. `create`: make the view if it is not there."""

    KIND: ClassVar[int] = 0x50
    topic: str
    view: str
    credit: int
    lease_ms: int | None = None
    create: bool = True
    settings: Settings = {}
    matches: list[MatchFields] = []


class Leased(msgspec.Struct, array_like=True):
    """Messages of one partition. The place of a record is `stream << 48 | offset`."""

    topic: str
    partition: int
    stream: int
    batch: bytes
    numbers: list[int]  # the lease number of each record
    attempts: list[int]


class Deliveries(Message):
    """A push to a queue subscription; the reply to Lease and Peek."""

    KIND: ClassVar[int] = 0xD0
    leased: list[Leased]


class Lease(Message):
    KIND: ClassVar[int] = 0x51
    topic: str
    view: str
    limit: int
    wait_ms: int = 0
    lease_ms: int | None = None


class Settle(Message):
    """outcome: ack, nack, reject, release or extend."""

    KIND: ClassVar[int] = 0x52
    topic: str
    view: str
    outcome: str
    receipts: list[Receipt]
    delay_ms: int | None = None
    lease_ms: int | None = None


class Settled(Message):
    """`lost`: the indexes of those receipts that are no longer this consumer's to settle."""

    KIND: ClassVar[int] = 0xD2
    lost: list[int]


class StepMessage(msgspec.Struct, array_like=True):
    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[Pair] = []
    timestamp_ms: int = -1
    partition: int = -1


class Step(Message):
    """Settle and publish, both or neither, once per name. Replied with Done(1), or Done(0) if it was done before."""

    KIND: ClassVar[int] = 0x53
    topic: str
    view: str
    name: str
    receipts: list[Receipt]
    messages: Annotated[list[StepMessage], msgspec.Meta(max_length=MAX_BATCHES)]


class CreateView(Message):
    """Replied with Views. `start`: earliest or latest."""

    KIND: ClassVar[int] = 0x54
    topic: str
    view: str
    settings: Settings = {}
    matches: list[MatchFields] = []
    start: str = "earliest"
    or_existing: bool = False


class ConfigureView(Message):
    KIND: ClassVar[int] = 0x55
    topic: str
    view: str
    settings: Settings = {}
    matches: list[MatchFields] | None = None


class DeleteView(Message):
    KIND: ClassVar[int] = 0x56
    topic: str
    view: str


class ListViews(Message):
    """All views, those of one topic, or one view."""

    KIND: ClassVar[int] = 0x57
    topic: str | None = None
    view: str | None = None


class View(msgspec.Struct, array_like=True):
    topic: str
    name: str
    settings: Settings
    sources: list[tuple[str, list[MatchFields]]]
    paused: bool
    counts: dict[str, int]


class Views(Message):
    KIND: ClassVar[int] = 0xD7
    views: list[View]


class PauseView(Message):
    KIND: ClassVar[int] = 0x58
    topic: str
    view: str
    paused: bool


class PurgeView(Message):
    KIND: ClassVar[int] = 0x59
    topic: str
    view: str


class RedriveView(Message):
    KIND: ClassVar[int] = 0x5A
    topic: str
    view: str
    limit: int = 10_000


class PeekView(Message):
    KIND: ClassVar[int] = 0x5B
    topic: str
    view: str
    limit: int = 10


# -- routers ------------------------------------------------------------------------------------------------


class BindingFields(msgspec.Struct, array_like=True):
    to: str
    key: str | None = None
    headers: dict[str, str] = {}
    any_header: bool = False


class CreateRouter(Message):
    KIND: ClassVar[int] = 0x60
    name: str
    kind: str


class DeleteRouter(Message):
    KIND: ClassVar[int] = 0x61
    name: str


class Bind(Message):
    KIND: ClassVar[int] = 0x62
    router: str
    binding: BindingFields


class Unbind(Message):
    KIND: ClassVar[int] = 0x63
    router: str
    binding: BindingFields


class ListRouters(Message):
    KIND: ClassVar[int] = 0x64


class Router(msgspec.Struct, array_like=True):
    name: str
    kind: str
    bindings: list[BindingFields]


class Routers(Message):
    """The reply to all of the above but DeleteRouter."""

    KIND: ClassVar[int] = 0xE0
    routers: list[Router]


# -- consumer groups ----------------------------------------------------------------------------------------


class ListGroups(Message):
    KIND: ClassVar[int] = 0x70


class GroupInfo(msgspec.Struct, array_like=True):
    name: str
    state: str
    protocol_type: str


class Groups(Message):
    KIND: ClassVar[int] = 0xF0
    groups: list[GroupInfo]


class DescribeGroup(Message):
    KIND: ClassVar[int] = 0x71
    group: str


class MemberInfo(msgspec.Struct, array_like=True):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: bytes  # as the group's leader wrote it, in the members' own format


class GroupOffset(msgspec.Struct, array_like=True):
    topic: str
    partition: int
    committed: int  # the next offset to read
    end: int | None  # of the partition; nil when it is gone


class GroupDescription(Message):
    KIND: ClassVar[int] = 0xF1
    name: str
    state: str
    protocol_type: str
    protocol: str
    members: list[MemberInfo]
    offsets: list[GroupOffset]


class DeleteGroup(Message):
    """A group without members, and what it committed."""

    KIND: ClassVar[int] = 0x72
    group: str


class DeleteOffsets(Message):
    """What a group committed for these partitions, of topics that none of its members reads."""

    KIND: ClassVar[int] = 0x73
    group: str
    partitions: list[tuple[str, int]]


# -- pipelines ----------------------------------------------------------------------------------------------


class ReportPipeline(Message):
    """A running pipeline tells how it does, every few seconds. Replied with Orders."""

    KIND: ClassVar[int] = 0x78
    name: str
    run: str  # tells runs of one name apart
    state: str  # starting, running, idle, stopping, stopped, failed
    report: dict[str, str | int | float | bool | None]  # what it wants people to see


class Orders(Message):
    KIND: ClassVar[int] = 0xF8
    stop: bool


class ListPipelines(Message):
    KIND: ClassVar[int] = 0x79


class PipelineInfo(msgspec.Struct, array_like=True):
    name: str
    run: str
    state: str
    report: dict[str, str | int | float | bool | None]
    since_ms: int  # when its first report came, wall clock
    heard_ms: int  # and its last


class Pipelines(Message):
    KIND: ClassVar[int] = 0xF9
    pipelines: list[PipelineInfo]


class StopPipeline(Message):
    """Ask a pipeline to stop: its next report is answered with the order to."""

    KIND: ClassVar[int] = 0x7A
    name: str
