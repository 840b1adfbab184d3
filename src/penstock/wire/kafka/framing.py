"""Kafka's frames: an int32 length, then that many bytes. `wire/receiver.py` tells how they are received."""

from penstock.wire import receiver
from penstock.wire.kafka.reader import Malformed
from penstock.wire.receiver import CHUNK_BYTES, FIRST_BYTES, GROWTH, SMALL_FRAME_BYTES

__all__ = ["CHUNK_BYTES", "FIRST_BYTES", "GROWTH", "SMALL_FRAME_BYTES", "Receiver"]


class Receiver(receiver.Receiver):
    Malformed = Malformed
