"""Fetch sessions: a reader tells its partitions once, then only what changes (KIP-227).

Bounded: when there are too many, the one unused for longest goes; its reader is told and starts a new one.
"""

import secrets
from collections import OrderedDict
from dataclasses import dataclass, field

from penstock.broker.fetch import Interest
from penstock.model.errors import InvalidFetchSessionEpoch, UnknownFetchSession

MAX_SESSIONS = 1000
NO_SESSION = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
_EPOCHS = (1 << 31) - 1


@dataclass(slots=True)
class FetchSession:
    id: int
    next_epoch: int = 1
    interest: Interest = field(default_factory=Interest)


class FetchSessions:
    def __init__(self, max_sessions: int = MAX_SESSIONS) -> None:
        self._max_sessions = max_sessions
        self._by_id: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def create(self) -> FetchSession:
        while len(self._by_id) >= self._max_sessions:
            self._by_id.popitem(last=False)[1].interest.close()
        while (session_id := secrets.randbelow(_EPOCHS) + 1) in self._by_id:
            pass
        session = self._by_id[session_id] = FetchSession(session_id)
        return session

    def resume(self, session_id: int, epoch: int) -> FetchSession:
        session = self._by_id.get(session_id)
        if session is None:
            raise UnknownFetchSession(f"there is no fetch session {session_id}")
        if epoch != session.next_epoch:
            raise InvalidFetchSessionEpoch(f"fetch session {session_id} is at epoch {session.next_epoch}, not {epoch}")
        session.next_epoch = session.next_epoch % _EPOCHS + 1
        self._by_id.move_to_end(session_id)
        return session

    def remove(self, session_id: int) -> None:
        session = self._by_id.pop(session_id, None)
        if session is not None:
            session.interest.close()
