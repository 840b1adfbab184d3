"""Tells the broker how a run does, every few seconds, and hears whether it is to stop.

A broker that is down, slow or too old must not disturb the pipeline: reports come from a thread of their own, each
waits a bounded time, and after a failure the next one comes later and later, up to a bound. A report that did not
arrive is never made up for; the next one tells it all again.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Final

from penstock.client.blocking import BlockingConnection
from penstock.model.errors import InvalidRequest, NotAllowed, PenstockError
from penstock.wire.native.messages import Orders, ReportPipeline

REPORT_EVERY_S: Final = 2.0
ANSWER_S: Final = 5.0
RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 15.0  # the broker calls a run lost after 30 s
LAST_WORD_S: Final = 3.0  # for the report that it has ended

Value = str | int | float | bool | None
Told = tuple[str, Mapping[str, Value]]  # state and report


class Reporter:
    def __init__(
        self,
        server: str,
        name: str,
        run: str,
        tell: Callable[[], Told],
        on_stop: Callable[[], None],
        *,
        every_s: float = REPORT_EVERY_S,
    ) -> None:
        self._server = server
        self._name = name
        self._run = run
        self._tell = tell
        self._on_stop = on_stop
        self._every_s = every_s
        self._connection: BlockingConnection | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"report {name}", daemon=True)
        self.failures = 0  # in a row
        self.delivered = 0
        self.refusal: PenstockError | None = None  # the broker does not want reports: there are none any more

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Report once more, how it ended, and say no more."""
        self._ended.set()
        self._thread.join(LAST_WORD_S + ANSWER_S)

    def _work(self) -> None:
        while not self._ended.wait(self._report(ANSWER_S)) and self.refusal is None:
            pass
        if self.refusal is None:
            self._report(LAST_WORD_S)
        self._disconnect()

    def _report(self, within_s: float) -> float:
        """Report, and how long to wait for the next time."""
        state, report = self._tell()
        try:
            if self._connection is None:
                self._connection = BlockingConnection(self._server, timeout_s=within_s, client=f"pipeline {self._name}")
            orders = self._connection.request(ReportPipeline(self._name, self._run, state, dict(report)))
        except (InvalidRequest, NotAllowed) as refusal:
            self.refusal = refusal
            return 0.0
        except PenstockError:
            self._disconnect()
            self.failures += 1
            return min(RETRY_FIRST_S * 2.0 ** min(self.failures - 1, 10), RETRY_MAX_S)
        self.failures = 0
        self.delivered += 1
        if isinstance(orders, Orders) and orders.stop:
            self._on_stop()
        return self._every_s

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
