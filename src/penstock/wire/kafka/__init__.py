"""The Kafka protocol as bytes and messages: no socket, no clock, nothing else of ours."""
