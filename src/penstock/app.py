"""The composition root: the one file that knows everyone. It builds the server, runs it, and takes it down."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from dataclasses import dataclass, field

import uvloop

from penstock.broker.administer import Administrator
from penstock.broker.broker import Broker
from penstock.broker.coordinate import Coordinator, GroupSettings
from penstock.broker.fetch import Fetcher
from penstock.broker.gather import Gatherer
from penstock.broker.observe import Observer
from penstock.broker.pipelines import Pipelines
from penstock.broker.publish import Publisher
from penstock.broker.queues import Queues
from penstock.broker.read import Readers
from penstock.broker.route import Routers
from penstock.broker.transact import Transactions, TransactionSettings
from penstock.config import Settings
from penstock.doors.door import Door
from penstock.doors.http.door import HttpDoor
from penstock.doors.kafka.door import KafkaDoor
from penstock.doors.limits import Limits
from penstock.doors.line.door import LineDoor
from penstock.doors.udp.door import UdpDoor
from penstock.log.housekeeper import Housekeeper
from penstock.log.identities import Identities
from penstock.log.partition import Partition
from penstock.log.settings import check_setting
from penstock.log.swap import Swap
from penstock.log.topics import Engines, Topics
from penstock.logs import configure_logs
from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import PenstockError
from penstock.model.ids import INTERNAL_PREFIX
from penstock.process import allow_descriptors, keep_freed_buffers, let_threads_in
from penstock.security.acl import AllowAll
from penstock.storage.disk import DiskEngine
from penstock.storage.memory import MemoryEngine

_log = logging.getLogger("penstock")

GROUPS_LEDGER = f"{INTERNAL_PREFIX}groups"
QUEUES_LEDGER = f"{INTERNAL_PREFIX}queues"
ROUTERS_LEDGER = f"{INTERNAL_PREFIX}routers"
IDENTITIES_LEDGER = f"{INTERNAL_PREFIX}identities"
TRANSACTIONS_LEDGER = f"{INTERNAL_PREFIX}transactions"

EXIT_OK = 0
EXIT_FAILED = 1

check_topic_setting = check_setting  # so that the settings file is checked before anything starts


class StartFailed(Exception):
    """The server cannot start; the message says why and is all that a user needs."""


@dataclass(slots=True)
class Server:
    """Everything of one running server, and the order in which it comes up and goes down."""

    settings: Settings
    clock: Clock = field(default_factory=SystemClock)
    doors: list[Door] = field(default_factory=list)
    _topics: Topics | None = None
    _housekeeper: Housekeeper | None = None
    _transactions: Transactions | None = None
    _broker: Broker | None = None

    async def start(self) -> None:
        broker = self._broker = await self._build()
        for door in self._make_doors(broker):
            try:
                address = await door.open()
            except OSError as error:
                reason = os.strerror(error.errno) if error.errno else str(error)
                wanted = getattr(self.settings, door.name)
                raise StartFailed(
                    f"the {door.name} door cannot listen on {wanted}: {reason}; choose another with --{door.name}"
                ) from error
            self.doors.append(door)
            _log.info("%s listening on %s", door.name, address)
            if not _is_loopback(address):
                _log.warning("everyone who reaches %s may do everything: this server knows no users yet", address)
        # What lives now lives long: leave it out of every later garbage collection.
        gc.collect()
        gc.freeze()
        _log.info("penstock ready")

    async def _build(self) -> Broker:
        settings = self.settings
        housekeeper = self._housekeeper = Housekeeper(self.clock, settings.producer_id_expiration_ms)
        topics = self._topics = Topics(
            engines=self._engines(),
            clock=self.clock,
            defaults=self._topic_defaults(),
            max_topics=settings.max_topics,
            max_partitions=settings.max_partitions,
            opened=self._adopt,
        )
        await topics.start()
        identities = Identities(await topics.open_ledger(IDENTITIES_LEDGER))
        await identities.start(settings.cluster_id)
        authorizer = AllowAll()
        coordinator = Coordinator(
            await topics.open_ledger(GROUPS_LEDGER), self.clock, self._group_settings(), authorizer
        )
        await coordinator.start()
        topics.swapped = coordinator.follow_swap
        await topics.finish_swaps()
        await coordinator.keep_only_topics(topics.by_name)
        transactions = self._transactions = Transactions(
            await topics.open_ledger(TRANSACTIONS_LEDGER),
            topics,
            self.clock,
            identities,
            coordinator,
            self._transaction_settings(),
            authorizer,
        )
        await transactions.start()
        publisher = Publisher(topics, authorizer, transactions)
        administrator = Administrator(
            topics,
            authorizer,
            default_partitions=settings.default_partitions,
            auto_create_topics=settings.auto_create_topics,
            topic_deleted=self._forget_topic,
            check_swap=self._check_swap,
        )
        gatherer = Gatherer(topics, administrator, publisher)
        queues = Queues(
            await topics.open_ledger(QUEUES_LEDGER),
            topics,
            self.clock,
            authorizer,
            administrator,
            gatherer,
            max_views=settings.max_views,
            transactions=transactions,
        )
        routers = Routers(await topics.open_ledger(ROUTERS_LEDGER), topics, authorizer, administrator, gatherer, queues)
        await topics.sweep()
        await queues.start()
        await routers.start()
        housekeeper.start()
        return Broker(
            node_id=settings.node_id,
            clock=self.clock,
            authorizer=authorizer,
            topics=topics,
            publisher=publisher,
            fetcher=Fetcher(topics, authorizer),
            observer=Observer(topics, authorizer),
            administrator=administrator,
            coordinator=coordinator,
            transactions=transactions,
            gatherer=gatherer,
            readers=Readers(topics, authorizer),
            queues=queues,
            routers=routers,
            pipelines=Pipelines(self.clock, authorizer),
            identities=identities,
            about=self._about(),
        )

    def _adopt(self, partition: Partition) -> None:
        """A partition was opened, or altered."""
        assert self._housekeeper is not None
        self._housekeeper.adopt(partition)
        if self._transactions is not None:
            self._transactions.adopt(partition)

    async def _forget_topic(self, name: str) -> None:
        """A topic was deleted: so is all that is kept elsewhere about it."""
        assert self._broker is not None
        self._broker.transactions.forget_topic(name)
        await self._broker.coordinator.forget_topic(name)
        await self._broker.routers.forget_topic(name)
        await self._broker.queues.forget_topic(name)

    def _check_swap(self, swap: Swap) -> None:
        """What is kept elsewhere about a topic, beside groups' offsets, cannot follow its name to another log."""
        assert self._broker is not None
        for name in (swap.name, swap.other):
            self._broker.routers.check_unbound(name)
            self._broker.queues.check_unread(name)
            self._broker.coordinator.check_unread(name)
            self._broker.transactions.check_unwritten(name)
        self._broker.coordinator.check_room({group for group, _, _ in swap.offsets})

    def _engines(self) -> Engines:
        memory = MemoryEngine(self.clock)
        if not self.settings.storage.persistent:
            return Engines(memory, memory)
        return Engines(DiskEngine(self.settings.storage.path or self.settings.data, self.clock), memory)

    def _topic_defaults(self) -> dict[str, str]:
        settings = self.settings
        return {"storage": settings.storage.topics, "durability": settings.durability, **settings.topic_defaults}

    def _group_settings(self) -> GroupSettings:
        settings = self.settings
        return GroupSettings(
            initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
            min_session_timeout_ms=settings.group_min_session_timeout_ms,
            max_session_timeout_ms=settings.group_max_session_timeout_ms,
            max_size=settings.group_max_size,
            offsets_retention_ms=settings.offsets_retention_minutes * 60_000,
        )

    def _transaction_settings(self) -> TransactionSettings:
        settings = self.settings
        return TransactionSettings(
            max_timeout_ms=settings.transaction_max_timeout_ms,
            id_expiration_ms=settings.transactional_id_expiration_ms,
            max_ids=settings.max_transactional_ids,
            max_steps=settings.max_steps,
            step_expiration_ms=settings.step_expiration_ms,
            step_max_timeout_ms=settings.step_max_timeout_ms,
        )

    def _about(self) -> dict[str, str]:
        settings = self.settings
        return {
            "auto.create.topics.enable": str(settings.auto_create_topics).lower(),
            "default.replication.factor": "1",
            "group.initial.rebalance.delay.ms": str(settings.group_initial_rebalance_delay_ms),
            "group.max.session.timeout.ms": str(settings.group_max_session_timeout_ms),
            "group.max.size": str(settings.group_max_size),
            "group.min.session.timeout.ms": str(settings.group_min_session_timeout_ms),
            "node.id": str(settings.node_id),
            "num.partitions": str(settings.default_partitions),
            "offsets.retention.minutes": str(settings.offsets_retention_minutes),
            "socket.request.max.bytes": str(settings.max_request_bytes),
            "transaction.max.timeout.ms": str(settings.transaction_max_timeout_ms),
            "transactional.id.expiration.ms": str(settings.transactional_id_expiration_ms),
        }

    def _make_doors(self, broker: Broker) -> list[Door]:
        settings = self.settings
        limits = Limits(settings.max_connections, settings.max_pending_bytes)
        doors: list[Door] = []
        if settings.kafka is not None:
            advertised = settings.kafka_advertised
            doors.append(
                KafkaDoor(
                    broker,
                    settings.kafka.host,
                    settings.kafka.port,
                    limits=limits,
                    max_request_bytes=settings.max_request_bytes,
                    max_silence_s=settings.connection_idle_ms / 1000,
                    advertised_host=advertised.host if advertised else None,
                    advertised_port=advertised.port if advertised else None,
                )
            )
        if settings.line is not None:
            doors.append(
                LineDoor(
                    broker,
                    settings.line.host,
                    settings.line.port,
                    limits=limits,
                    max_request_bytes=settings.max_request_bytes,
                    max_silence_s=settings.connection_idle_ms / 1000,
                )
            )
        if settings.udp is not None:
            doors.append(UdpDoor(broker, settings.udp.host, settings.udp.port))
        if settings.http is not None:
            doors.append(
                HttpDoor(
                    broker,
                    settings.http.host,
                    settings.http.port,
                    limits=limits,
                    max_body_bytes=settings.max_body_bytes,
                    max_silence_s=settings.connection_idle_ms / 1000,
                )
            )
        return doors

    async def stop(self) -> None:
        """Answer what is under way, then leave everything durable and the data marked as cleanly closed."""
        if self._broker is not None:
            self._broker.coordinator.release()
            self._broker.transactions.release()
            self._broker.fetcher.release()
            self._broker.readers.release()
            self._broker.queues.release()
        await asyncio.gather(*(door.drain(self.settings.drain_timeout_s) for door in self.doors))
        await asyncio.gather(*(door.close() for door in self.doors))
        if self._broker is not None:
            await self._broker.routers.stop()
            await self._broker.queues.stop()
            await self._broker.transactions.stop()
            await self._broker.coordinator.stop()
        if self._housekeeper is not None:
            await self._housekeeper.stop()
        if self._topics is not None:
            await self._topics.close()


def _is_loopback(address: str) -> bool:
    return address.startswith(("127.", "[::1]", "localhost:"))


async def _serve(settings: Settings) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server = Server(settings)
    try:
        await server.start()
        await stopping.wait()
        _log.info("stopping")
    finally:
        await server.stop()
    _log.info("stopped")
    return EXIT_OK


def run(settings: Settings) -> int:
    """Run a server until it is told to stop; the process's exit code."""
    configure_logs(settings.log_level, settings.log_format)
    keep_freed_buffers()
    let_threads_in()
    allow_descriptors(settings.max_connections)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            return uvloop.run(_serve(settings))
        except (StartFailed, PenstockError) as error:
            print(f"penstock: {error}", file=sys.stderr)
        except OSError as error:
            print(f"penstock: {error.filename or 'the system'}: {error.strerror or error}", file=sys.stderr)
    return EXIT_FAILED
