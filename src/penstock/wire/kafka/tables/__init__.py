"""Every Kafka message we can read or write, as text tables; `schema.py` turns them into plans."""

from penstock.wire.kafka.tables import (
    configs,
    consumer_groups,
    consumer_protocol,
    groups,
    metadata,
    offsets,
    placement,
    produce_fetch,
    quotas,
    security,
    share_groups,
    share_offsets,
    topics,
    transactions,
)

TABLES = tuple(
    module.TABLE
    for module in (
        produce_fetch,
        metadata,
        offsets,
        groups,
        consumer_groups,
        share_groups,
        share_offsets,
        consumer_protocol,
        topics,
        placement,
        configs,
        transactions,
        security,
        quotas,
    )
)
