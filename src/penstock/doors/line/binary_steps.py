"""Named steps: writers, and the one commit that shows what they wrote. What they write comes as every publish."""

from penstock.broker.coordinate import TopicPartition
from penstock.doors.line.binary_api import Call, handles
from penstock.model.errors import InvalidRequest, NotAllowed, UnknownPartition
from penstock.model.ids import INTERNAL_PREFIX
from penstock.wire.native.messages import (
    AbortStep,
    CommitStep,
    DescribeStep,
    Done,
    ForgetStep,
    Message,
    OpenWriter,
    StepDescription,
    Writer,
)

MAX_STEP_NAME_CHARS = 1_024


@handles(OpenWriter)
async def open_writer(call: Call, request: OpenWriter) -> object:
    _check_name(request.step)
    opening = call.broker.transactions.open_writer(
        call.principal, request.step, request.epoch, request.writer, request.timeout_ms
    )

    async def open_one() -> Message:
        opened = await opening
        return Writer(opened.producer_id, opened.producer_epoch, opened.done, opened.mark)

    return open_one()


@handles(CommitStep)
async def commit_step(call: Call, request: CommitStep) -> object:
    _check_name(request.step)
    offsets: dict[str, dict[TopicPartition, int]] = {}
    for group, name, index, offset in request.offsets:
        topic = call.broker.observer.topic(call.principal, name)
        if not 0 <= index < topic.partition_count:
            raise UnknownPartition(f"topic {name!r} has {topic.partition_count} partitions, none is {index}")
        if offset < 0:
            raise InvalidRequest(f"offset {offset} is not an offset")
        offsets.setdefault(group, {})[TopicPartition(name, index)] = offset
    committing = call.broker.transactions.commit_step(
        call.principal, request.step, request.epoch, request.writers, request.mark, offsets
    )

    async def commit() -> Message:
        return Done(int(await committing))

    return commit()


@handles(AbortStep)
async def abort_step(call: Call, request: AbortStep) -> object:
    _check_name(request.step)
    aborting = call.broker.transactions.abort_step(call.principal, request.step, request.epoch)

    async def abort() -> Message:
        return Done(await aborting)

    return abort()


@handles(DescribeStep)
async def describe_step(call: Call, request: DescribeStep) -> StepDescription:
    step = call.broker.transactions.describe_step(call.principal, request.step)
    return StepDescription(step.name, list(step.committed), [(epoch, list(labels)) for epoch, labels in step.open])


@handles(ForgetStep)
async def forget_step(call: Call, request: ForgetStep) -> object:
    _check_name(request.step)
    forgetting = call.broker.transactions.forget_step(call.principal, request.step)

    async def forget() -> Message:
        await forgetting
        return Done()

    return forget()


def _check_name(step: str) -> None:
    if not 1 <= len(step) <= MAX_STEP_NAME_CHARS:
        raise InvalidRequest(f"a step's name has 1 to {MAX_STEP_NAME_CHARS} characters, not {len(step)}")
    if step.startswith(INTERNAL_PREFIX):
        raise NotAllowed(f"names like {step[:100]!r} are the broker's own")
