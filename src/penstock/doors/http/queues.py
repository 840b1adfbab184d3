"""Queue views: made and looked at, leased from and settled.

A receipt is `<place>-<lease number>` to its holder: a word to hand back, not to look into.
"""

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.broker.queues import (
    Counts,
    Delivery,
    Match,
    Outcome,
    Publication,
    QueueSettings,
    Receipt,
    ViewInfo,
)
from penstock.doors.http.call import Call, Reply, nothing, reply
from penstock.doors.http.errors import problem_of
from penstock.doors.http.fetch import Wait
from penstock.doors.http.records import Milliseconds, RecordIn, RecordOut, outgoing, record_out
from penstock.doors.http.routing import route
from penstock.model.errors import InvalidRequest, PenstockError

QUEUES = "Queue views"

MAX_LEASED = 10_000  # messages of one call
MAX_STEP_CHARS = 1024

Count = Annotated[int, Meta(ge=1, le=MAX_LEASED)]
_RECEIPT = re.compile(r"([0-9]{1,19})-([0-9]{1,19})")


class NewView(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`matches`: only records that one of them fits. `start`: which records that are there already count."""

    name: str
    settings: QueueSettings = QueueSettings()
    matches: list[Match] = []
    start: Literal["earliest", "latest"] = "earliest"


class PutView(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    settings: QueueSettings = QueueSettings()
    matches: list[Match] = []
    start: Literal["earliest", "latest"] = "earliest"


class ViewChanges(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Settings that are not named stay as they are."""

    settings: dict[str, Any] = {}
    matches: list[Match] | UnsetType = UNSET


class SourceInfo(msgspec.Struct):
    topic: str
    matches: list[Match]


class ViewDetail(msgspec.Struct):
    topic: str
    name: str
    paused: bool
    settings: dict[str, Any]  # all of them, those by default too
    sources: list[SourceInfo]
    counts: Counts


class ViewList(msgspec.Struct):
    queues: list[ViewDetail]


class LeaseAsk(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`lease_ms`: instead of the view's own lease time."""

    limit: Count = 1
    wait_ms: Wait = 0
    lease_ms: Milliseconds | None = None


class Leased(RecordOut, kw_only=True):
    receipt: str
    attempt: int


class LeasedList(msgspec.Struct):
    messages: list[Leased]


class Settlement(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`delay_ms`: of a nack, instead of the back-off. `lease_ms`: of an extension."""

    receipts: Annotated[list[str], Meta(max_length=MAX_LEASED)]
    delay_ms: Milliseconds | None = None
    lease_ms: Milliseconds | None = None


class SettleResult(msgspec.Struct, omit_defaults=True):
    receipt: str
    ok: bool
    code: str | None = None
    detail: str | None = None


class SettleResults(msgspec.Struct):
    results: list[SettleResult]


class StepPublication(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    records: list[RecordIn]


class StepAsk(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`step` names it: repeated under the same name it happens once."""

    step: Annotated[str, Meta(min_length=1, max_length=MAX_STEP_CHARS)]
    receipts: Annotated[list[str], Meta(max_length=MAX_LEASED)]
    publish: list[StepPublication] = []


class StepDone(msgspec.Struct):
    """`repeated`: it was done before, and nothing happened now."""

    step: str
    repeated: bool


class Counted(msgspec.Struct):
    count: int


class StatusInfo(msgspec.Struct):
    partition: int
    offset: int
    status: Literal["pending", "processing", "processed"]


class LimitQuery(msgspec.Struct, forbid_unknown_fields=True):
    limit: Count = 10


class RedriveAsk(msgspec.Struct, forbid_unknown_fields=True):
    limit: Count = MAX_LEASED


PATH = "/v1/topics/{topic}/queues"
VIEW = PATH + "/{queue}"


@route("GET", "/v1/queues", QUEUES, "List the queue views of all topics", reply=ViewList, reads=True)
async def list_all_views(call: Call) -> Reply:
    return reply(ViewList([detail_of(view) for view in call.broker.queues.views(call.principal)]))


@route("GET", PATH, QUEUES, "List queue views", reply=ViewList, reads=True)
async def list_views(call: Call) -> Reply:
    topic = call.broker.observer.topic(call.principal, call["topic"])
    return reply(ViewList([detail_of(view) for view in call.broker.queues.views(call.principal, topic.name)]))


@route("POST", PATH, QUEUES, "Create a queue view", body=NewView, reply=ViewDetail, status=201)
async def create_view(call: Call) -> Reply:
    new = call.json(NewView)
    view = await call.broker.queues.create(
        call.principal, call["topic"], new.name, new.settings, matches=new.matches, start=new.start
    )
    return reply(detail_of(view), 201)


@route("PUT", VIEW, QUEUES, "Make sure that there is a queue view", body=PutView, optional_body=True, reply=ViewDetail)
async def put_view(call: Call) -> Reply:
    """Made if it is not there; one that is there is left as it is."""
    new = call.json(PutView, PutView())
    view = await call.broker.queues.create(
        call.principal,
        call["topic"],
        call["queue"],
        new.settings,
        matches=new.matches,
        start=new.start,
        or_existing=True,
    )
    return reply(detail_of(view))


@route("GET", VIEW, QUEUES, "A queue view in numbers", reply=ViewDetail, reads=True)
async def get_view(call: Call) -> Reply:
    return reply(detail_of(call.broker.queues.describe(call.principal, call["topic"], call["queue"])))


@route("PATCH", VIEW, QUEUES, "Alter a queue view", body=ViewChanges, reply=ViewDetail)
async def alter_view(call: Call) -> Reply:
    changes, queues = call.json(ViewChanges), call.broker.queues
    present = queues.describe(call.principal, call["topic"], call["queue"]).settings
    try:
        settings = msgspec.convert({**_fields(present), **changes.settings}, QueueSettings)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"in `settings`: {error}") from None
    matches = None if changes.matches is UNSET else changes.matches
    return reply(detail_of(await queues.configure(call.principal, call["topic"], call["queue"], settings, matches)))


@route("DELETE", VIEW, QUEUES, "Delete a queue view; the records stay", status=204)
async def delete_view(call: Call) -> Reply:
    await call.broker.queues.delete(call.principal, call["topic"], call["queue"])
    return nothing()


# -- consuming ----------------------------------------------------------------------------------------------


@route("POST", VIEW + "/lease", QUEUES, "Lease messages", body=LeaseAsk, optional_body=True, reply=LeasedList)
async def lease(call: Call) -> Reply:
    """Up to `limit` messages; with `wait_ms` a long poll. Each is yours until it is settled or its lease ends."""
    ask = call.json(LeaseAsk, LeaseAsk())
    deliveries = await call.broker.queues.lease(
        call.principal, call["topic"], call["queue"], ask.limit, wait_ms=ask.wait_ms, lease_ms=ask.lease_ms
    )
    if deliveries and call.connection.transport.is_closing():  # nobody is there to work on them
        receipts = [delivery.receipt for delivery in deliveries]
        await call.broker.queues.settle(call.principal, call["topic"], call["queue"], Outcome.RELEASE, receipts)
        deliveries = []
    return reply(LeasedList([leased(delivery) for delivery in deliveries]))


async def _settle(call: Call, outcome: Outcome) -> Reply:
    ask = call.json(Settlement)
    receipts = [receipt_of(text) for text in ask.receipts]
    errors = await call.broker.queues.settle(
        call.principal,
        call["topic"],
        call["queue"],
        outcome,
        receipts,
        delay_ms=ask.delay_ms,
        lease_ms=ask.lease_ms,
    )
    return reply(SettleResults(results_of(ask.receipts, errors)))


@route("POST", VIEW + "/ack", QUEUES, "Acknowledge: processed", body=Settlement, reply=SettleResults)
async def ack(call: Call) -> Reply:
    """Answered when it is durable, receipt by receipt."""
    return await _settle(call, Outcome.ACK)


@route("POST", VIEW + "/nack", QUEUES, "Failed: again after the back-off", body=Settlement, reply=SettleResults)
async def nack(call: Call) -> Reply:
    """After the last attempt the message goes to the dead letters."""
    return await _settle(call, Outcome.NACK)


@route("POST", VIEW + "/reject", QUEUES, "Failed for good: to the dead letters", body=Settlement, reply=SettleResults)
async def reject(call: Call) -> Reply:
    return await _settle(call, Outcome.REJECT)


@route("POST", VIEW + "/release", QUEUES, "Not tried: back in its place", body=Settlement, reply=SettleResults)
async def release(call: Call) -> Reply:
    """The attempt does not count."""
    return await _settle(call, Outcome.RELEASE)


@route("POST", VIEW + "/extend", QUEUES, "Still working: the lease begins anew", body=Settlement, reply=SettleResults)
async def extend(call: Call) -> Reply:
    return await _settle(call, Outcome.EXTEND)


@route("POST", VIEW + "/step", QUEUES, "Settle and publish in one step", body=StepAsk, reply=StepDone)
async def step(call: Call) -> Reply:
    """Acknowledges the receipts and publishes the records, both or neither, once however often it is repeated."""
    ask = call.json(StepAsk)
    publications = [Publication(each.topic, tuple(map(outgoing, each.records))) for each in ask.publish]
    receipts = [receipt_of(text) for text in ask.receipts]
    done = await call.broker.queues.step(call.principal, call["topic"], call["queue"], ask.step, receipts, publications)
    return reply(StepDone(ask.step, not done))


# -- the view as a whole ------------------------------------------------------------------------------------


@route("GET", VIEW + "/peek", QUEUES, "Look at the next messages", query=LimitQuery, reply=LeasedList, reads=True)
async def peek(call: Call) -> Reply:
    """Without leasing them."""
    limit = call.query(LimitQuery).limit
    deliveries = await call.broker.queues.peek(call.principal, call["topic"], call["queue"], limit)
    return reply(LeasedList([leased(delivery) for delivery in deliveries]))


@route("POST", VIEW + "/pause", QUEUES, "Hand out nothing", reply=ViewDetail)
async def pause(call: Call) -> Reply:
    return await _pause(call, paused=True)


@route("POST", VIEW + "/resume", QUEUES, "Hand out again", reply=ViewDetail)
async def resume(call: Call) -> Reply:
    return await _pause(call, paused=False)


async def _pause(call: Call, *, paused: bool) -> Reply:
    queues = call.broker.queues
    await queues.pause(call.principal, call["topic"], call["queue"], paused=paused)
    return reply(detail_of(queues.describe(call.principal, call["topic"], call["queue"])))


@route("POST", VIEW + "/purge", QUEUES, "Settle everything that is not leased", reply=Counted)
async def purge(call: Call) -> Reply:
    return reply(Counted(await call.broker.queues.purge(call.principal, call["topic"], call["queue"])))


@route("POST", VIEW + "/redrive", QUEUES, "Dead letters back", body=RedriveAsk, optional_body=True, reply=Counted)
async def redrive(call: Call) -> Reply:
    """To the topics they came from, for this view only."""
    limit = call.json(RedriveAsk, RedriveAsk()).limit
    return reply(Counted(await call.broker.queues.redrive(call.principal, call["topic"], call["queue"], limit)))


@route("GET", VIEW + "/messages/{partition}/{offset}", QUEUES, "The status of a message", reply=StatusInfo, reads=True)
async def status(call: Call) -> Reply:
    partition, offset = call.whole("partition"), call.whole("offset")
    found = call.broker.queues.status_of(call.principal, call["topic"], call["queue"], partition, offset)
    return reply(StatusInfo(partition, offset, found.value))


# -- as JSON ------------------------------------------------------------------------------------------------


def _fields(settings: QueueSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in QueueSettings.__struct_fields__}


def detail_of(view: ViewInfo) -> ViewDetail:
    sources = [SourceInfo(source.topic, list(source.matches)) for source in view.sources]
    return ViewDetail(view.topic, view.name, view.paused, _fields(view.settings), sources, view.counts)


def leased(delivery: Delivery) -> Leased:
    out = record_out(delivery.partition, delivery.record, delivery.topic)
    return Leased(
        out.partition,
        out.offset,
        out.timestamp_ms,
        out.key,
        out.value,
        out.headers,
        out.topic,
        receipt=f"{delivery.receipt.place}-{delivery.receipt.number}",
        attempt=delivery.attempt,
    )


def receipt_of(text: str) -> Receipt:
    match = _RECEIPT.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"{text[:100]!r} is not a receipt")
    return Receipt(int(match[1]), int(match[2]))


def results_of(receipts: list[str], errors: list[PenstockError | None]) -> list[SettleResult]:
    results = []
    for receipt, error in zip(receipts, errors, strict=True):
        if error is None:
            results.append(SettleResult(receipt, True))
        else:
            problem = problem_of(error)
            results.append(SettleResult(receipt, False, problem.code, problem.detail))
    return results
