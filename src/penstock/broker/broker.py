"""The broker: one object that holds the verbs, each in its own module. Doors know this and nothing below it."""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.broker.administer import Administrator
from penstock.broker.coordinate import Coordinator
from penstock.broker.fetch import Fetcher
from penstock.broker.gather import Gatherer
from penstock.broker.observe import Observer
from penstock.broker.pipelines import Pipelines
from penstock.broker.publish import Publisher
from penstock.broker.queues import Queues
from penstock.broker.read import Readers
from penstock.broker.route import Routers
from penstock.broker.transact import Transactions
from penstock.log.identities import Identities
from penstock.log.topics import Topics
from penstock.model.clock import Clock
from penstock.security.acl import Authorizer


@dataclass(slots=True)
class Broker:
    node_id: int
    clock: Clock
    authorizer: Authorizer
    topics: Topics
    publisher: Publisher
    fetcher: Fetcher
    observer: Observer
    administrator: Administrator
    coordinator: Coordinator
    transactions: Transactions
    gatherer: Gatherer
    readers: Readers
    queues: Queues
    routers: Routers
    pipelines: Pipelines
    identities: Identities
    about: Mapping[str, str]  # settings of the server that tools may show, under their Kafka names
