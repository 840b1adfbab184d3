"""Group handlers without a socket: each request and response goes through the real codec on its way."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from types import SimpleNamespace as Struct
from typing import Any

from penstock.broker.coordinate import Coordinator, GroupSettings
from penstock.doors.kafka import group_admin, group_offsets, groups
from penstock.doors.kafka.api import HANDLERS, Advertised, Call
from penstock.model.errors import UnknownTopicId
from penstock.security.acl import AllowAll, Authorizer
from penstock.security.principal import ANONYMOUS
from penstock.testing.clock import ManualClock
from penstock.wire.kafka.api import ApiKey
from penstock.wire.kafka.messages import (
    decode_header,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    encode_subscription,
)

assert group_admin and group_offsets and groups  # imported for their handlers

SUBSCRIPTION = encode_subscription(Struct(topics=["orders"]))


class QuickLedger:
    """Everything is durable at once, unless the disk is full."""

    def __init__(self) -> None:
        self.facts: list[tuple[bytes, bytes | None]] = []
        self.failure: Exception | None = None

    def record(self, key: bytes, value: bytes | None) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.failure is not None:
            future.set_exception(self.failure)
        else:
            self.facts.append((key, value))
            future.set_result(None)
        return future

    async def replay(self) -> AsyncIterator[tuple[bytes, bytes | None]]:
        for fact in self.facts:
            yield fact


class FewTopics:
    def __init__(self, **partition_counts: int) -> None:
        self.by_name = {
            name: Struct(name=name, id=uuid.uuid5(uuid.NAMESPACE_DNS, name), partition_count=count)
            for name, count in partition_counts.items()
        }

    def get_by_id(self, topic_id: uuid.UUID) -> Any:
        for topic in self.by_name.values():
            if topic.id == topic_id:
                return topic
        raise UnknownTopicId(f"there is no topic with id {topic_id}")


class House:
    def __init__(self, authorizer: Authorizer | None = None) -> None:
        self.ledger = QuickLedger()
        self.clock = ManualClock()
        self.topics = FewTopics(orders=4, payments=1)
        authorizer = authorizer or AllowAll()
        self.coordinator = Coordinator(self.ledger, self.clock, GroupSettings(initial_rebalance_delay_ms=0), authorizer)
        self.broker: Any = Struct(coordinator=self.coordinator, topics=self.topics, authorizer=authorizer)

    def ask(self, api: ApiKey, version: int, **body: Any) -> "asyncio.Task[Any]":
        return asyncio.ensure_future(self._ask(api, version, Struct(**body)))

    async def now(self, api: ApiKey, version: int, **body: Any) -> Any:
        return await asyncio.wait_for(self._ask(api, version, Struct(**body)), 5)

    async def _ask(self, api: ApiKey, version: int, body: Struct) -> Any:
        frame = b"".join(bytes(part) for part in encode_request(api, version, 7, "app", body))[4:]
        header = decode_header(frame)
        call = Call(
            api_key=api,
            version=version,
            client_id=header.client_id,
            client_host="127.0.0.1",
            principal=ANONYMOUS,
            body=decode_request(api, version, frame, header.position),
            broker=self.broker,
            advertised=Advertised(3, "broker.example", 9092),
            sessions=None,  # type: ignore[arg-type]
        )
        served = HANDLERS[api]
        assert served.min_version <= version <= served.max_version
        reply = await served.handler(call)
        if reply is not None and not isinstance(reply, Struct):
            reply = await reply
        assert reply is not None
        encoded = b"".join(bytes(part) for part in encode_response(api, version, 7, reply))
        correlation_id, response = decode_response(api, version, encoded[4:])
        assert correlation_id == 7
        return response

    async def member(self, version: int = 5, group: str = "readers", **more: Any) -> Any:
        """Join a group that nobody is in; the answer to the second attempt if the first only gave an id."""
        body = {
            "group_id": group,
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 20_000,
            "protocol_type": "consumer",
            "protocols": [Struct(name="range", metadata=SUBSCRIPTION)],
            **more,
        }
        joined = await self.now(ApiKey.JOIN_GROUP, version, **body)
        if joined.error_code == 79:
            joined = await self.now(ApiKey.JOIN_GROUP, version, **{**body, "member_id": joined.member_id})
        return joined

    async def stable(self, **more: Any) -> Any:
        joined = await self.member(**more)
        synced = await self.now(
            ApiKey.SYNC_GROUP,
            3,
            group_id="readers",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[Struct(member_id=joined.member_id, assignment=b"all")],
        )
        assert synced.error_code == 0
        return joined
