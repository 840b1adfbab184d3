"""Transactions at the Kafka door, request by request: what each version says, and the codes that clients act on."""

from collections.abc import AsyncIterator
from types import SimpleNamespace as Struct

import pytest
from kafka_wire import Wire, batch

from penstock.doors.kafka.door import KafkaDoor
from penstock.model.batch import TRANSACTIONAL, encode_batch
from penstock.model.errors import NotAllowed
from penstock.model.record import Record
from penstock.security.acl import AllowAll, Operation, Resource
from penstock.security.principal import Principal
from penstock.wire.kafka.api import ApiKey

UNKNOWN_TOPIC, COORDINATOR_NOT_AVAILABLE, NOT_ENOUGH_REPLICAS, ILLEGAL_GENERATION, UNKNOWN_MEMBER = 3, 15, 19, 22, 25
TOPIC_DENIED, GROUP_DENIED, CLUSTER_DENIED, TRANSACTION_DENIED = 29, 30, 31, 53
INVALID_REQUEST, INVALID_EPOCH, INVALID_STATE, INVALID_MAPPING, INVALID_TIMEOUT = 42, 47, 48, 49, 50
UNSTABLE, FENCED, UNKNOWN_ID, INVALID_PATTERN = 88, 90, 105, 128

Producer = tuple[int, int]  # id, epoch


class Client:
    """One transactional producer, request by request."""

    def __init__(self, wire: Wire, name: str = "payer") -> None:
        self.wire, self.name = wire, name
        self.id, self.epoch, self.sequence = -1, -1, 0

    async def init(self, version: int = 5, timeout_ms: int = 60_000, was: Producer = (-1, -1)) -> int:
        known = {"producer_id": was[0], "producer_epoch": was[1]} if version >= 3 else {}
        reply = await self.wire.ask(
            ApiKey.INIT_PRODUCER_ID, version, transactional_id=self.name, transaction_timeout_ms=timeout_ms, **known
        )
        if reply.error_code == 0:
            self.id, self.epoch, self.sequence = reply.producer_id, reply.producer_epoch, 0
        else:
            assert (reply.producer_id, reply.producer_epoch) == (-1, -1)
        return int(reply.error_code)

    async def add(self, topic: str, index: int = 0, version: int = 3, *, verify_only: bool = False) -> int:
        topics = [Struct(name=topic, partitions=[index])]
        if version < 4:
            reply = await self.wire.ask(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                version,
                v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=self.id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=topics,
            )
            results = reply.results_by_topic_v3_and_below
        else:
            asked = Struct(
                transactional_id=self.name,
                producer_id=self.id,
                producer_epoch=self.epoch,
                verify_only=verify_only,
                topics=topics,
            )
            reply = await self.wire.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, transactions=[asked])
            if reply.error_code:
                return int(reply.error_code)
            assert reply.results_by_transaction[0].transactional_id == self.name
            results = reply.results_by_transaction[0].topic_results
        return int(results[0].results_by_partition[0].partition_error_code)

    async def add_group(self, group: str = "readers", version: int = 4) -> int:
        reply = await self.wire.ask(
            ApiKey.ADD_OFFSETS_TO_TXN,
            version,
            transactional_id=self.name,
            producer_id=self.id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        return int(reply.error_code)

    async def commit_offset(
        self, topic: str, offset: int, group: str = "readers", version: int = 3, index: int = 0, **member: object
    ) -> int:
        place = Struct(partition_index=index, committed_offset=offset, committed_leader_epoch=-1, committed_metadata="")
        reply = await self.wire.ask(
            ApiKey.TXN_OFFSET_COMMIT,
            version,
            transactional_id=self.name,
            group_id=group,
            producer_id=self.id,
            producer_epoch=self.epoch,
            topics=[Struct(name=topic, partitions=[place])],
            **({"member_id": "", **member} if version >= 3 else {}),
        )
        return int(reply.topics[0].partitions[0].error_code)

    async def end(self, *, commit: bool = True, version: int = 4) -> int:
        reply = await self.wire.ask(
            ApiKey.END_TXN,
            version,
            transactional_id=self.name,
            producer_id=self.id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        if version >= 5 and reply.error_code == 0:
            self.id, self.epoch, self.sequence = reply.producer_id, reply.producer_epoch, 0
        return int(reply.error_code)

    async def produce(
        self, topic: str, *values: bytes, version: int = 11, name: str | None = "", transactional: bool = True
    ) -> int:
        """`name`: the transactional id that the request names, its own by default."""
        records = [Record(i, 1_700_000_000_000, None, value) for i, value in enumerate(values)]
        data = encode_batch(
            records,
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            attributes=TRANSACTIONAL if transactional else 0,
        )
        reply = await self.wire.ask(
            ApiKey.PRODUCE,
            version,
            transactional_id=self.name if name == "" else name,
            acks=-1,
            timeout_ms=1000,
            topic_data=[Struct(name=topic, partition_data=[Struct(index=0, records=data)])],
        )
        code = int(reply.responses[0].partition_responses[0].error_code)
        self.sequence += len(values) if code == 0 else 0
        return code


@pytest.fixture
async def client(wire: Wire) -> Client:
    await wire.create("orders", retention_ms="-1")
    made = Client(wire)
    assert await made.init() == 0
    return made


@pytest.fixture
async def other_wire(kafka_door: KafkaDoor, wire: Wire) -> AsyncIterator[Wire]:
    """A connection that is younger than `wire`."""
    opened = await Wire.open(kafka_door.listener.port)
    yield opened
    await opened.close()


async def committed_end(wire: Wire, topic: str = "orders") -> int:
    place = Struct(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    reply = await wire.ask(
        ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=1, topics=[Struct(name=topic, partitions=[place])]
    )
    return int(reply.topics[0].partitions[0].offset)


async def offset_of(wire: Wire, group: str = "readers", version: int = 7, *, stable: bool = False) -> tuple[int, int]:
    topics = [Struct(name="orders", partition_indexes=[0])]
    if version < 8:
        body: dict[str, object] = {"group_id": group, "topics": topics}
    else:
        body = {"groups": [Struct(group_id=group, member_id=None, member_epoch=-1, topics=topics)]}
    if version >= 7:
        body["require_stable"] = stable
    reply = await wire.ask(ApiKey.OFFSET_FETCH, version, **body)
    found = reply if version < 8 else reply.groups[0]
    partition = found.topics[0].partitions[0]
    return partition.error_code, partition.committed_offset


# -- both protocols ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", range(5))
async def test_the_first_protocol_in_every_version(client: Client, version: int, commit: bool) -> None:
    assert await client.init(version) == 0
    identity = client.id, client.epoch
    for turn in range(2):
        assert await client.add("orders", version=min(version, 3)) == 0
        assert await client.produce("orders", b"a", b"b") == 0
        assert await client.add_group(version=version) == 0
        assert await client.commit_offset("orders", 10 + turn, version=version) == 0
        assert await committed_end(client.wire) == 3 * turn
        assert await client.end(commit=commit, version=version) == 0
        assert await committed_end(client.wire) == 3 * turn + 3, "two records and a marker"
        assert (await offset_of(client.wire))[1] == (10 + turn if commit else -1)
    assert (client.id, client.epoch) == identity, "the epoch stays"


@pytest.mark.parametrize("commit", [True, False])
async def test_the_second_protocol_adds_by_itself_and_gives_a_new_epoch_with_every_end(
    client: Client, commit: bool
) -> None:
    for turn in range(3):
        epoch = client.epoch
        assert await client.produce("orders", b"a", version=12) == 0
        assert await client.commit_offset("orders", 10 + turn, version=5) == 0
        assert await client.end(commit=commit, version=5) == 0
        assert client.epoch == epoch + 1
        assert await committed_end(client.wire) == 2 * turn + 2
        assert (await offset_of(client.wire))[1] == (10 + turn if commit else -1)


async def test_in_the_first_protocol_nothing_is_added_by_itself(client: Client) -> None:
    assert await client.produce("orders", b"a", version=11) == INVALID_STATE
    assert await client.commit_offset("orders", 10, version=4) == INVALID_STATE
    assert await client.end(version=4) == INVALID_STATE
    assert await committed_end(client.wire) == 0


async def test_partitions_of_a_transaction_can_be_verified(client: Client) -> None:
    assert await client.add("orders", version=5, verify_only=True) == INVALID_STATE
    assert await client.add("orders", version=4) == 0
    assert await client.add("orders", version=5, verify_only=True) == 0


async def test_the_server_says_which_protocol_may_be_spoken(wire: Wire) -> None:
    known = {"client_software_name": "test", "client_software_version": "1"}
    for version in (3, 4):
        reply = await wire.ask(ApiKey.API_VERSIONS, version, **known)
        (final,) = reply.finalized_features
        assert (final.name, final.min_version_level, final.max_version_level) == ("transaction.version", 2, 2)
        assert reply.finalized_features_epoch >= 0
        supported = [(f.name, f.min_version, f.max_version) for f in reply.supported_features]
        assert supported == ([("transaction.version", 0, 2)] if version == 4 else [])


@pytest.mark.parametrize("version", range(1, 7))
async def test_transactions_are_coordinated_here(wire: Wire, version: int, kafka_door: KafkaDoor) -> None:
    key = {"key": "payer"} if version < 4 else {"coordinator_keys": ["payer"]}
    found = await wire.ask(ApiKey.FIND_COORDINATOR, version, key_type=1, **key)
    found = found if version < 4 else found.coordinators[0]
    assert (found.error_code, found.port) == (0, kafka_door.listener.port)


# -- who may not ------------------------------------------------------------------------------------------------


async def test_a_fenced_producer_is_told_so_in_the_words_of_its_version(client: Client, other_wire: Wire) -> None:
    assert await client.add("orders") == 0
    successor = Client(other_wire)
    assert await successor.init() != 0, "what the other has open is being aborted"
    while code := await successor.init():
        assert code == 51, "and then it is tried again"
    for version, code in ((1, INVALID_EPOCH), (2, FENCED)):
        assert await client.add("orders", version=version) == code
        assert await client.add_group(version=version) == code
        assert await client.end(version=version) == code
    assert await client.init(3, was=(client.id, client.epoch)) == INVALID_EPOCH
    assert await client.init(4, was=(client.id, client.epoch)) == FENCED
    for version in (0, 3, 5):
        assert await client.commit_offset("orders", 1, version=version) == INVALID_EPOCH
    for version in (9, 12):
        assert await client.produce("orders", b"x", version=version) == INVALID_EPOCH


async def test_a_delayed_end_never_touches_a_later_transaction(client: Client, other_wire: Wire) -> None:
    assert await client.add("orders") == 0
    assert await client.end() == 0
    client.wire, older = other_wire, client.wire
    assert await client.add("orders") == 0
    assert await client.produce("orders", b"x") == 0
    client.wire = older
    assert await client.end(commit=False) == INVALID_STATE
    assert await client.end(commit=True) == INVALID_STATE
    client.wire = other_wire
    assert await client.end() == 0
    assert await committed_end(other_wire) == 3


async def test_a_batch_belongs_to_the_transaction_that_its_request_names(client: Client) -> None:
    assert await client.add("orders") == 0
    assert await client.produce("orders", b"x", name=None) == INVALID_MAPPING
    assert await client.produce("orders", b"x", name="somebody else") == INVALID_MAPPING
    assert await client.produce("orders", b"x") == 0
    assert await client.produce("orders", b"x", transactional=False) == INVALID_STATE
    stranger = Client(client.wire)
    stranger.id, stranger.epoch = client.id + 1000, 0
    assert await stranger.produce("orders", b"x", version=12) == INVALID_MAPPING
    assert await stranger.end() == INVALID_MAPPING


async def test_what_cannot_be_a_transaction_is_refused(client: Client, wire: Wire) -> None:
    assert await Client(wire, "").init() == INVALID_REQUEST
    assert await Client(wire, "odd").init(was=(5, -1)) == INVALID_REQUEST
    assert await Client(wire, "slow").init(timeout_ms=900_001) == INVALID_TIMEOUT
    assert await Client(wire, "hasty").init(timeout_ms=0) == INVALID_TIMEOUT
    assert await client.add("nowhere") == UNKNOWN_TOPIC
    assert await client.add("orders", 1) == UNKNOWN_TOPIC
    assert await client.commit_offset("nowhere", 1, version=5) == UNKNOWN_TOPIC
    assert await client.commit_offset("orders", 1, version=5, index=1) == UNKNOWN_TOPIC
    unknown = Client(wire, "unknown")
    assert await unknown.end() == INVALID_MAPPING


async def test_members_are_checked_since_they_are_named(client: Client) -> None:
    assert await client.add_group() == 0
    assert await client.commit_offset("orders", 1, member_id="who", generation_id=4) == ILLEGAL_GENERATION
    assert await client.commit_offset("orders", 1, version=2) == 0
    assert await client.commit_offset("orders", 1, member_id="who", generation_id=4) == UNKNOWN_MEMBER
    assert await client.commit_offset("orders", 1) == 0


# -- what others see of it --------------------------------------------------------------------------------------


async def test_offsets_are_unstable_until_their_transaction_ends(client: Client, wire: Wire) -> None:
    assert await client.commit_offset("orders", 5, version=5) == 0
    for version in (7, 9):
        assert await offset_of(wire, version=version, stable=True) == (UNSTABLE, -1)
        assert await offset_of(wire, version=version) == (0, -1)
    assert await client.end() == 0
    assert await offset_of(wire, stable=True) == (0, 5)


async def test_transactions_are_listed_and_described(client: Client, wire: Wire) -> None:
    assert await Client(wire, "idle").init() == 0
    assert await client.produce("orders", b"x", version=12) == 0

    async def listed(
        version: int = 2, states: tuple[str, ...] = (), ids: tuple[int, ...] = (), **more: object
    ) -> Struct:
        return await wire.ask(
            ApiKey.LIST_TRANSACTIONS, version, state_filters=list(states), producer_id_filters=list(ids), **more
        )

    def names(reply: Struct) -> list[str]:
        return sorted(found.transactional_id for found in reply.transaction_states)

    for version in range(3):
        assert names(await listed(version)) == ["idle", "payer"]
    assert names(await listed(states=("Ongoing",))) == ["payer"]
    assert names(await listed(states=("Ongoing", "Empty", "Dead"))) == ["idle", "payer"]
    assert names(await listed(states=("Dead",))) == []
    odd = await listed(states=("Odd",))
    assert (odd.unknown_state_filters, names(odd)) == (["Odd"], [])
    assert names(await listed(ids=(client.id,))) == ["payer"]
    assert names(await listed(duration_filter=0)) == ["payer"]
    assert names(await listed(duration_filter=60_000)) == []
    assert names(await listed(transactional_id_pattern="i.*")) == ["idle"]
    assert names(await listed(transactional_id_pattern="(idle|pay.*)")) == ["idle", "payer"]
    for odd in ("(", "(a+)+b", "a*a*a*b", "a?" * 40 + "a" * 40, "x" * 256, "(?=a)b", r"(a)\1"):
        assert (await listed(transactional_id_pattern=odd)).error_code == INVALID_PATTERN, odd

    reply = await wire.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["payer", "nobody"])
    found, missing = reply.transaction_states
    assert (found.error_code, found.transaction_state, found.transaction_timeout_ms) == (0, "Ongoing", 60_000)
    assert (found.producer_id, found.producer_epoch) == (client.id, client.epoch)
    assert [(topic.topic, topic.partitions) for topic in found.topics] == [("orders", [0])]
    assert missing.error_code == UNKNOWN_ID


async def test_producers_of_a_partition_are_described(client: Client, wire: Wire) -> None:
    assert (await produce_plain(wire, 77)) == 0
    assert await client.produce("orders", b"x", b"y", version=12) == 0
    asked = [Struct(name="orders", partition_indexes=[0, 9]), Struct(name="nowhere", partition_indexes=[0])]
    orders, nowhere = (await wire.ask(ApiKey.DESCRIBE_PRODUCERS, 0, topics=asked)).topics
    found, missing = orders.partitions
    active = {
        p.producer_id: (p.producer_epoch, p.last_sequence, p.current_txn_start_offset) for p in found.active_producers
    }
    assert active == {77: (0, 0, -1), client.id: (client.epoch, 1, 1)}
    assert (missing.error_code, nowhere.partitions[0].error_code) == (UNKNOWN_TOPIC, UNKNOWN_TOPIC)


async def produce_plain(wire: Wire, producer_id: int) -> int:
    wire.send_produce("orders", batch(b"plain", producer=(producer_id, 0, 0)))
    return int((await wire.receive()).responses[0].partition_responses[0].error_code)


# -- who is not allowed -----------------------------------------------------------------------------------------


class Without(AllowAll):
    def __init__(self, resource: Resource) -> None:
        self.resource = resource

    def allows(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> bool:
        return resource is not self.resource

    def check(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
        if not self.allows(principal, operation, resource, name):
            raise NotAllowed(f"{resource.value} {name}")


def forbid(monkeypatch: pytest.MonkeyPatch, door: KafkaDoor, resource: Resource) -> None:
    broker = door.broker
    monkeypatch.setattr(broker, "authorizer", Without(resource))
    for verbs in (broker.transactions, broker.publisher, broker.coordinator, broker.observer):
        monkeypatch.setattr(verbs, "_authorizer", Without(resource))


async def test_a_transactional_id_of_somebody_else(
    client: Client, wire: Wire, kafka_door: KafkaDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid(monkeypatch, kafka_door, Resource.TRANSACTIONAL_ID)
    assert await client.init() == TRANSACTION_DENIED
    assert await client.add("orders") == TRANSACTION_DENIED
    assert await client.add_group() == TRANSACTION_DENIED
    assert await client.commit_offset("orders", 1, version=5) == TRANSACTION_DENIED
    assert await client.end() == TRANSACTION_DENIED
    assert await client.produce("orders", b"x", version=12) == TRANSACTION_DENIED
    found = await wire.ask(ApiKey.FIND_COORDINATOR, 3, key="payer", key_type=1)
    assert found.error_code == TRANSACTION_DENIED
    described = await wire.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["payer"])
    assert described.transaction_states[0].error_code == TRANSACTION_DENIED


async def test_a_group_topic_or_cluster_of_somebody_else(
    client: Client, wire: Wire, kafka_door: KafkaDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        forbid(patch, kafka_door, Resource.GROUP)
        assert await client.add_group() == GROUP_DENIED
        assert await client.commit_offset("orders", 1, version=5) == GROUP_DENIED
    with monkeypatch.context() as patch:
        forbid(patch, kafka_door, Resource.TOPIC)
        assert await client.add("orders") == TOPIC_DENIED
        assert await client.commit_offset("orders", 1, version=5) == TOPIC_DENIED
    with monkeypatch.context() as patch:
        forbid(patch, kafka_door, Resource.CLUSTER)
        assert await client.add("orders", version=4) == CLUSTER_DENIED
        plain = await wire.ask(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout_ms=0)
        assert plain.error_code == CLUSTER_DENIED
