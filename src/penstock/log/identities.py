"""Names given out once, ever: the cluster's own id, and producer ids.

Blocks of producer ids are reserved by a fact, so that handing one out is free.
"""

import asyncio
import base64
import uuid

import msgspec

from penstock.log.ledger import Ledger

PRODUCER_ID_BLOCK = 1000
_CLUSTER_ID = b"cluster-id"
_PRODUCER_IDS = b"producer-ids"


class Identities:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.cluster_id = ""
        self._next = 0
        self._reserved_end = 0
        self._reserving: asyncio.Future[None] | None = None

    async def start(self, cluster_id: str | None) -> None:
        """Replay; what an earlier run reserved is never given out again. A given cluster id wins and is kept."""
        async for key, value in self._ledger.replay():
            if key == _PRODUCER_IDS and value is not None:
                self._next = self._reserved_end = msgspec.json.decode(value, type=int)
            elif key == _CLUSTER_ID and value is not None:
                self.cluster_id = value.decode()
        wanted = cluster_id or self.cluster_id or _new_cluster_id()
        if wanted != self.cluster_id:
            await self._ledger.record(_CLUSTER_ID, wanted.encode())
            self.cluster_id = wanted

    async def take_producer_id(self) -> int:
        while self._next >= self._reserved_end:
            if self._reserving is None:
                self._reserving = asyncio.ensure_future(self._reserve())
            await asyncio.shield(self._reserving)
        taken = self._next
        self._next += 1
        return taken

    async def _reserve(self) -> None:
        try:
            end = self._reserved_end + PRODUCER_ID_BLOCK
            await self._ledger.record(_PRODUCER_IDS, msgspec.json.encode(end))
            self._reserved_end = end
        finally:
            self._reserving = None


def _new_cluster_id() -> str:
    """22 characters, as Kafka's tools show them."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
