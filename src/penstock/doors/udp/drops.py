"""Datagrams that did not become messages: counted by reason, and told of in the log now and then."""

import asyncio
import logging
from collections import Counter

_log = logging.getLogger(__name__)

FIRST_REPORT_S = 1.0  # so that the first line tells more than the first drop
REPORT_INTERVAL_S = 10.0
MAX_REASONS = 20  # in one report; reasons name topics, and there may be many


class Drops:
    def __init__(self, report_interval_s: float = REPORT_INTERVAL_S) -> None:
        self.total = 0
        self._report_interval_s = report_interval_s
        self._unreported: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._reported_at = float("-inf")

    def count(self, reason: str, datagrams: int = 1) -> None:
        self.total += datagrams
        if reason not in self._unreported and len(self._unreported) >= MAX_REASONS:
            reason = "other reasons"
        self._unreported[reason] += datagrams
        if self._timer is None:
            loop = asyncio.get_running_loop()
            at = max(loop.time() + FIRST_REPORT_S, self._reported_at + self._report_interval_s)
            self._timer = loop.call_at(at, self.report)

    def report(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unreported:
            reasons = ", ".join(f"{count} x {reason}" for reason, count in self._unreported.most_common())
            _log.warning("udp: dropped %d datagrams: %s", self._unreported.total(), reasons)
            self._unreported.clear()
            self._reported_at = asyncio.get_running_loop().time()
