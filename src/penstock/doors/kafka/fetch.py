"""Fetch: stored batches leave as they are. A thin answer waits for more, apart from the connection's other requests.

At read_committed a client gets what lies before the first open transaction and, in the order of their first offsets,
which transactions in it were aborted: it leaves those out itself, by the markers that it finds.
"""

from collections.abc import Awaitable
from types import SimpleNamespace as Struct

from penstock.broker.fetch import Got, Interest, Isolation, Want, size_bytes
from penstock.doors.kafka.api import Call, Reply, handles
from penstock.doors.kafka.errors import error_code
from penstock.doors.kafka.offsets import check_leader_epoch
from penstock.doors.kafka.sessions import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION, FetchSession
from penstock.model.errors import PenstockError, UnknownTopicId
from penstock.wire.kafka.api import ApiKey

TOPIC_IDS_FROM = 13
SESSIONS_FROM = 7
READ_COMMITTED = 1


@handles(ApiKey.FETCH, 4, 18, alone=True)
async def fetch(call: Call) -> Reply | Awaitable[Reply]:
    try:
        session = _session(call)
    except PenstockError as error:
        return Struct(error_code=error_code(error), session_id=NO_SESSION, responses=[])
    isolation = Isolation.STABLE if call.body.isolation_level == READ_COMMITTED else Isolation.NONE
    interest = session.interest if session is not None else Interest(isolation)
    interest.isolate(isolation)
    _update(call, interest)
    body = call.body
    results = await call.broker.fetcher.read(call.principal, interest, body.max_bytes)
    missing_bytes = body.min_bytes - size_bytes(results)
    if missing_bytes <= 0 or body.max_wait_ms <= 0 or not interest.wants or any(got.error for got in results):
        return await _finish(call, session, interest, results)
    return _wait(call, session, interest, missing_bytes)


async def _wait(call: Call, session: FetchSession | None, interest: Interest, missing_bytes: int) -> Reply:
    try:
        await call.broker.fetcher.wait(interest, missing_bytes, call.body.max_wait_ms)
        results = await call.broker.fetcher.read(call.principal, interest, call.body.max_bytes)
        return await _finish(call, session, interest, results)
    except BaseException:
        if session is None:
            interest.close()
        raise


def _session(call: Call) -> FetchSession | None:
    """The session this request belongs to; None for a request that stands alone."""
    if call.version < SESSIONS_FROM:
        return None
    session_id, epoch = call.body.session_id, call.body.session_epoch
    if epoch == FINAL_EPOCH:
        call.sessions.remove(session_id)
        return None
    if epoch == INITIAL_EPOCH:
        call.sessions.remove(session_id)
        return call.sessions.create()
    return call.sessions.resume(session_id, epoch)


def _update(call: Call, interest: Interest) -> None:
    """Take the request's partitions into the interest, and those out that it forgets."""
    by_id = call.version >= TOPIC_IDS_FROM
    for topic in call.body.topics:
        name = _name(call, topic, by_id)
        for p in topic.partitions:
            key = (topic.topic_id if by_id else topic.topic, p.partition)
            refusal = _refusal(name, p.current_leader_epoch if call.version >= 9 else -1)
            interest.add(Want(key, name or "", p.partition, p.fetch_offset, p.partition_max_bytes, refusal))
    for topic in call.body.forgotten_topics_data if call.version >= SESSIONS_FROM else ():
        for index in topic.partitions:
            interest.remove((topic.topic_id if by_id else topic.topic, index))


def _name(call: Call, topic: Struct, by_id: bool) -> str | None:
    if not by_id:
        name: str = topic.topic
        return name
    known = call.broker.topics.by_id.get(topic.topic_id)
    return known.name if known is not None else None


def _refusal(name: str | None, leader_epoch: int) -> PenstockError | None:
    if name is None:
        return UnknownTopicId("no topic has this id")
    try:
        check_leader_epoch(leader_epoch)
    except PenstockError as error:
        return error
    return None


async def _finish(call: Call, session: FetchSession | None, interest: Interest, results: list[Got]) -> Struct:
    if session is None or call.body.session_epoch == INITIAL_EPOCH:
        results = results + await _silent(call, interest, results)
    if session is None:
        interest.close()
    by_id = call.version >= TOPIC_IDS_FROM
    committed = call.body.isolation_level == READ_COMMITTED
    topics: dict[object, list[Struct]] = {}  # each once: there are clients that keep only the last of a name
    for got in results:
        topics.setdefault(_topic_of(got), []).append(_partition(got, committed))
    return Struct(
        error_code=0,
        session_id=session.id if session else NO_SESSION,
        responses=[
            Struct(topic_id=topic, partitions=partitions) if by_id else Struct(topic=topic, partitions=partitions)
            for topic, partitions in topics.items()
        ],
    )


async def _silent(call: Call, interest: Interest, results: list[Got]) -> list[Got]:
    """A full answer names every partition that was asked for, also those with nothing to say."""
    told = {got.want.key for got in results}
    silent = [want for key, want in interest.wants.items() if key not in told]
    return [
        Got(want, want.partition) if want.partition else await call.broker.fetcher.meet(call.principal, interest, want)
        for want in silent
    ]


def _topic_of(got: Got) -> object:
    key = got.want.key
    assert isinstance(key, tuple)
    return key[0]


def _partition(got: Got, committed: bool) -> Struct:
    reply = Struct(partition_index=got.want.index, error_code=0, high_watermark=-1, records=b"")
    reply.aborted_transactions = (
        [Struct(producer_id=each.producer_id, first_offset=each.first_offset) for each in got.aborted]
        if committed
        else None
    )
    if got.partition is not None:
        reply.high_watermark, reply.last_stable_offset = got.partition.durable_end, got.partition.stable_end
        reply.log_start_offset = got.partition.start_offset
    if got.error is not None:
        reply.error_code = error_code(got.error)
    elif got.found is not None:
        reply.records = got.found.buffers
    return reply
