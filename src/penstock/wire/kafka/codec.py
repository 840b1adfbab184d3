"""Reads and writes Kafka messages by plans: one short loop over fields, the same for every message and version.

    form            non-flexible versions            flexible versions (compact)
    string          int16 length, UTF-8              uvarint length + 1, UTF-8
    bytes, records  int32 length, bytes              uvarint length + 1, bytes
    array           int32 count, elements            uvarint count + 1, elements
    null            length or count -1               0
    struct          its fields                       its fields, then the tagged fields
    nullable struct int8 (-1 null, 1 present), then the struct, in every version
    tagged fields   none                             uvarint count, then each: uvarint tag, uvarint size, size bytes

A decoded struct has an attribute for every field its table knows in any version; one that was not sent has its default
(a struct: None). A struct to encode may leave out whatever shall have its default; an attribute that no version knows
is a mistake and raises AttributeError. Bytes after a message's last field are ignored, as Apache Kafka's server does.
"""

from penstock.wire.kafka.plan import Buffer, Field, Plan, Struct
from penstock.wire.kafka.reader import Malformed, decode
from penstock.wire.kafka.writer import encode

__all__ = ["Buffer", "Field", "Malformed", "Plan", "Struct", "decode", "encode"]
