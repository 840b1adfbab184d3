"""The cheapest question that a ready Kafka server answers: a Metadata request, written by hand so that no client's
start-up time is measured with the server's.
"""

import socket
import struct

#   i32 size | i16 api key 3 | i16 version 1 | i32 correlation id | i16 client id length -1 | i32 topics: 0, none
METADATA_V1 = struct.pack(">ihhihi", 14, 3, 1, 7, -1, 0)
TIMEOUT_S = 5.0


def metadata_reply(address: str) -> bool:
    """Whether the server at `host:port` names at least one broker, itself."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
            connection.sendall(METADATA_V1)
            with connection.makefile("rb") as stream:
                head = stream.read(12)
    except OSError:
        return False
    #   i32 size | i32 correlation id | i32 brokers
    return len(head) == 12 and struct.unpack(">iii", head)[1] == 7 and struct.unpack(">iii", head)[2] > 0
