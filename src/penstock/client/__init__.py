"""The Python client that users import as `penstock.Client`, on the binary protocol of the line door.

`client` says what can be done, `sync` says it for code without a loop, `admin` has the calls that look after topics,
queues and routers, and `groups` those about consumer groups and offsets. Below them: `publisher`, with an `outbox` per
topic, a `lane` per partition and `room` for so much; `subscription` and its kinds `log`, `queue` and `push`; `session`,
a connection that comes back, on `connection`.
"""
