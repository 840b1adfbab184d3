"""One run of a pipeline, from the first report to its exit: who watches it, who may stop it, and how it ends.

    work thread (the caller's)    does the work: starts queries and waits for them, or runs a job
    ticker                        reads the queries, shows what they say, and carries out a stop
    reporter                      tells the broker, and hears its orders

A stop is graceful: the batch under way is finished, then the query ends. A second one does not wait. What a stop cuts
off is repeated by the next run, exactly once, because the checkpoint and the sink agree on what was done. A run that
was stopped has not failed.
"""

import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, Generic, TypeVar

from penstock.model.errors import LimitReached, PenstockError
from penstock.pipeline.display import Display, Silent
from penstock.pipeline.failures import explain, is_slow_start
from penstock.pipeline.jobs.job import Progress
from penstock.pipeline.progress import Meter, Query, Reading, State, summed
from penstock.pipeline.reporter import Reporter, Value

TICK_S: Final = 0.5
STOP_TICK_S: Final = 0.05
FINISH_BATCH_S: Final = 60.0  # a batch that takes longer is cut off, and repeated by the next run
MAX_QUERIES: Final = 100  # of one run
REPORTED_QUERIES: Final = 8  # by name; the others are in the sums
MESSAGE_CHARS: Final = 500
START_TRIES: Final = 4
HURRIED: Final = 2  # stops after which nothing is waited for
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

T = TypeVar("T")


class NothingToRun(PenstockError):
    """The pipeline has no query that could be watched."""


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """How a run ended: done, stopped or failed."""

    state: str
    result: T | None = None
    error: BaseException | None = None
    message: str = ""

    @property
    def exit_code(self) -> int:
        return 1 if self.state == "failed" else 0


class Run:
    """`perform` runs the work; whatever else is here may be called from any thread meanwhile."""

    def __init__(
        self,
        name: str,
        *,
        server: str | None = None,
        display: Display | None = None,
        about: Mapping[str, Value] | None = None,
        cancel: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self.id = uuid.uuid4().hex[:12]
        self.display: Display = display if display is not None else Silent()
        self.about: dict[str, Value] = {"host": socket.gethostname(), "pid": os.getpid(), **(about or {})}
        self.cancel = cancel  # ends work that is no query, such as a batch job
        self.at_end: Callable[[], None] | None = None  # closes what the queries run on, when nobody asks them any more
        self.stage: Progress | None = None
        self.flows: dict[str, Reading] = {}  # of a declarative pipeline, as Spark tells
        self._meters: list[Meter] = []
        self._state: State = "starting"
        self._message = ""
        self._began = time.monotonic()
        self._stops = 0
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._reporter = Reporter(server, name, self.id, self._told, self._ordered) if server is not None else None

    # -- what the work calls ------------------------------------------------------------------------------------

    def watch(self, query: Query) -> None:
        """Show this query's progress, and stop it when the run is to stop."""
        if len(self._meters) >= MAX_QUERIES:
            raise LimitReached(f"a run watches at most {MAX_QUERIES} queries")
        # A job that starts its query anew goes on counting where the old one ended.
        before = next((meter for meter in self._meters if meter.query.id == query.id), None)
        others = [meter for meter in self._meters if meter is not before]
        self._meters = [*others, Meter(query, before.reading if before is not None else None)]
        if self._stop.is_set():
            query.stop()

    def progressed(self, progress: Progress) -> None:
        """For work that counts by itself."""
        self.stage = progress
        self.check()

    def check(self) -> None:
        """For work between two steps: end here if the run is to stop."""
        if self.is_stopping:
            raise Stopped(self._message or "it was asked to stop")

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    def wait(self, queries: Iterable[Query]) -> None:
        """Until all of them have ended; when one fails the others are stopped, and its failure is raised."""
        waiting = list(queries)
        if not waiting:
            raise NothingToRun("the pipeline has started no query")
        for query in waiting:
            self.watch(query)
        while waiting:
            waiting = [query for query in waiting if not query.awaitTermination(TICK_S)]

    def insist(self, work: Callable[[], T], clear: Callable[[], None]) -> T:
        """Do the work, and again if Spark gave up on a Python process that was slow to start: it waits for ten seconds,
        which a busy machine may exceed. What was done before is not repeated, as after any other failure. `clear`
        ends what the attempt has left running."""
        for attempt in range(1, START_TRIES + 1):
            try:
                return work()
            except Exception as error:
                if attempt == START_TRIES or self.is_stopping or not is_slow_start(error):
                    raise
                self.display.note("Python was slow to start; trying again")
                clear()
                self._meters = []
        raise AssertionError("unreachable")

    def rest(self, seconds: float) -> bool:
        """Wait, unless the run is to stop. Whether it goes on."""
        return not self._stop.wait(seconds)

    # -- stopping -----------------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """Finish the batches under way, then end. The second time: end."""
        self._stops += 1
        if not self._stop.is_set():
            self._message = reason
            self._stop.set()

    def _ordered(self) -> None:
        """The broker repeats its order with every answer: that is no reason to hurry."""
        if not self.is_stopping:
            self.stop("the broker was asked to stop it")

    def _carry_out_stop(self) -> None:
        for meter in list(self._meters):
            if meter.query.isActive:
                self._finish_batch(meter)
                meter.query.stop()
        if self.cancel is not None:
            self.cancel()

    def _finish_batch(self, meter: Meter) -> None:
        batch = meter.read(stopping=True).batches
        deadline = time.monotonic() + FINISH_BATCH_S
        while time.monotonic() < deadline and self._stops < HURRIED and meter.query.isActive:
            status = meter.query.status
            if not (status["isTriggerActive"] and status["isDataAvailable"]):
                return
            if meter.read(stopping=True).batches != batch:
                return
            self._show()
            self._ended.wait(STOP_TICK_S)

    def take_signals(self) -> None:
        """SIGINT and SIGTERM stop the run; after two that were not enough, the third has its usual effect. A Spark
        session takes SIGINT for itself when it starts, so this is to be called once more after that."""
        for number in SIGNALS:
            signal.signal(number, self._signalled)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self.stop(f"{signal.Signals(number).name} was received")
        if self._stops >= HURRIED:
            signal.signal(number, signal.default_int_handler)

    # -- the run ------------------------------------------------------------------------------------------------

    def perform(self, work: Callable[["Run"], T], *, signals: bool = False) -> Outcome[T]:
        """Do the work in this thread, watched. Errors do not leave: they are in the outcome."""
        ticker = threading.Thread(target=self._tick, name=f"watch {self.name}", daemon=True)
        if self._reporter is not None:
            self._reporter.start()
        with _signals(self) if signals else nullcontext():
            ticker.start()
            try:
                outcome = Outcome("done", work(self))
            except (KeyboardInterrupt, Stopped) as error:
                outcome = Outcome("stopped", error=error)
            except Exception as error:
                if self.is_stopping:
                    outcome = Outcome("stopped", error=error)
                else:
                    outcome = Outcome("failed", error=error, message=explain(error))
            if outcome.state == "failed":
                self._stops = HURRIED  # what else runs is of no use any more
                self._stop.set()
            elif outcome.state == "done" and self.is_stopping:
                outcome = Outcome("stopped", outcome.result)
            self._state = "stopping"
            self._ended.set()
            ticker.join(FINISH_BATCH_S)
            if self.at_end is not None:
                self._guarded(self.at_end)
            self._end(outcome)
        return outcome

    def _tick(self) -> None:
        refused = False
        while not self._wait_for_news():
            self._read()
            self._show()
            if not refused and self._reporter is not None and self._reporter.refusal is not None:
                refused = True
                self.display.note(f"the broker does not take reports: {self._reporter.refusal}")
            if self._stop.is_set():
                # Again at every tick: work that has just begun its next job is to end, too.
                self._guarded(self._carry_out_stop)
        if self._stop.is_set():
            self._guarded(self._carry_out_stop)
        self._read()

    def _wait_for_news(self) -> bool:
        """A tick, or less when a stop comes. Whether the work has ended."""
        if not self._stop.is_set():
            self._stop.wait(TICK_S)
            return self._ended.is_set()
        return self._ended.wait(TICK_S)

    def _read(self) -> None:
        for meter in list(self._meters):
            self._guarded(meter.read, self.is_stopping)

    def _guarded(self, ask: Callable[..., Any], *given: object) -> None:
        """A query that cannot be asked (Spark is gone, or ends) is no reason to fail here: its own thread says why."""
        try:
            ask(*given)
        except Exception as error:
            self._message = explain(error)[:MESSAGE_CHARS]

    def _show(self) -> None:
        self.display.show(self.state, self.readings, self.stage)

    @property
    def readings(self) -> list[Reading]:
        return [*(meter.reading for meter in self._meters), *list(self.flows.values())]

    @property
    def state(self) -> State:
        if self._ended.is_set():
            return self._state
        if self._stop.is_set():
            return "stopping"
        if self._meters or self.flows:
            return summed(self.readings).state
        return "running" if self.stage is not None else self._state

    def _end(self, outcome: Outcome[Any]) -> None:
        self._state = "failed" if outcome.state == "failed" else "stopped"
        self._message = outcome.message or self._message
        told = self._told()[1]
        if self._reporter is not None:
            self._reporter.close()
        self.display.show(self._state, self.readings, self.stage)
        ended: dict[str, Any] = {"state": outcome.state, "seconds": round(time.monotonic() - self._began, 1)}
        ended |= {name: told[name] for name in ("rows", "batches") if name in told}
        if outcome.message:
            ended["error"] = outcome.message
        self.display.end(ended)

    def _told(self) -> tuple[State, dict[str, Value]]:
        """What the broker is told."""
        readings = self.readings
        report: dict[str, Value] = {**self.about, "uptime_s": round(time.monotonic() - self._began)}
        if readings:
            total = summed(readings)
            report |= {
                "queries": len(readings),
                "batch": total.batch,
                "batches": total.batches,
                "rows": total.rows,
                "rows_per_s": total.rows_per_s,
                "lag": total.lag,
                "duration_ms": total.duration_ms,
            }
            for one in readings[:REPORTED_QUERIES] if len(readings) > 1 else ():
                report |= {
                    f"{one.query[:40]}.rows_per_s": one.rows_per_s,
                    f"{one.query[:40]}.lag": one.lag,
                    f"{one.query[:40]}.batch": one.batch,
                }
        if self.stage is not None:
            report |= {"stage": self.stage.stage, "done": self.stage.done, "total": self.stage.total}
        if self._message:
            report["message"] = self._message[:MESSAGE_CHARS]
        return self.state, report


class Stopped(PenstockError):
    """The work ended because it was asked to."""


@contextmanager
def _signals(run: Run) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    run.take_signals()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
