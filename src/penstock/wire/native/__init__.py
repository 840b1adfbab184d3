"""Penstock's own binary protocol: frames of MessagePack with record batches inside. `docs/protocol.md` is its law."""
