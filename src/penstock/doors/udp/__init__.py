"""The UDP door: one datagram, one message."""
