"""A small synchronous Kafka client for the command line: no threads, one request at a time, works with any broker.

`connection` speaks to one server, `cluster` knows who is where, and on them stand `producer`, `reader`, `member`
(a consumer group's), `admin`, `offsets` and `groups`. `errors` has everything that they raise.
"""
