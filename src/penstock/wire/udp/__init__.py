"""Datagrams that a shell or a microcontroller can send."""
