"""What may be done to what. Operations and resources as Kafka's ACLs name them, checked inside the broker's verbs."""

import enum
from typing import Protocol

from penstock.security.principal import Principal


class Operation(enum.Enum):
    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    DESCRIBE_CONFIGS = "describe-configs"
    ALTER_CONFIGS = "alter-configs"
    CLUSTER_ACTION = "cluster-action"
    IDEMPOTENT_WRITE = "idempotent-write"


class Resource(enum.Enum):
    TOPIC = "topic"
    GROUP = "group"
    QUEUE = "queue"  # a queue view, named `<topic>/<view>`
    CLUSTER = "cluster"
    TRANSACTIONAL_ID = "transactional-id"
    PIPELINE = "pipeline"


class Authorizer(Protocol):
    def allows(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> bool:
        """For listings that show only what the principal may see."""
        ...

    def check(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
        """Raise NotAllowed unless the principal may do this."""
        ...


class AllowAll:
    """Everyone may do everything: what a server without users does, reachable from its own machine only."""

    def allows(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> bool:
        return True

    def check(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
        return
