"""Kill the driver, its Python workers and the broker with -9, again and again, at random moments: the topic and the
tables that Spark fills hold each input exactly once.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from sink_stories import is_stable, records_in
from source_topics import create

from penstock.client.errors import ClientError
from penstock.model.errors import PenstockError
from penstock.pipeline.tables import open_table
from penstock.testing.server import Server, process_tree
from servers import StartServer
from thorough import often

MILL = Path(__file__).with_name("spark_mill.py")
CLASS_ARCHIVE = Path(__file__).parents[2] / ".make" / "spark-classes.jsa"
FORMATS = ("parquet", "delta", "iceberg")
PARTITIONS = 3
BURST = 60
WORKER_KILLS, BROKER_KILLS, DRIVER_KILLS = often(14, 6), often(10, 4), often(4, 2)
READY_S, DONE_S = 120.0, 240.0

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("spark")]


class Feed:
    """Publishes numbers until it is stopped. What the topic holds is the truth, whatever became of an answer."""

    def __init__(self, server: Server, topic: str) -> None:
        self._server = server
        self._topic = topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Feed":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the feed did not end"

    def _run(self) -> None:
        count = 0
        with self._server.sync_client() as client:
            while not self._stopping.wait(0.2):
                with contextlib.suppress(PenstockError, ClientError):
                    client.publish_many(self._topic, [{"id": n} for n in range(count, count + BURST)])
                count += BURST


class Driver:
    """The mill's process and its group, to which its Java belongs; Spark's workers go when that has gone."""

    def __init__(self, home: Path, told: dict[str, str]) -> None:
        self._home = home
        self._told = {"home": str(home), **told}
        if CLASS_ARCHIVE.exists():
            self._told["class_archive"] = str(CLASS_ARCHIVE)
        self._process: subprocess.Popen[bytes] | None = None
        self.log = home / "mill.log"

    def start(self) -> None:
        with self.log.open("ab") as log:
            said = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, str(MILL), json.dumps(self._told)], stdout=log, stderr=log, start_new_session=True
            )
        wait_until(lambda: b"ready" in self.log.read_bytes()[said:], READY_S, "the driver is not ready", self.log)

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
            self._process = None

    def kill_worker(self, choose: random.Random) -> bool:
        """One of Spark's Python workers, if there is any just now."""
        assert self._process is not None
        workers = [pid for pid in process_tree(self._process.pid) if "-m pyspark." in command_of(pid)]
        if not workers:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(choose.choice(workers), signal.SIGKILL)
        return True

    def stop(self) -> None:
        assert self._process is not None
        (self._home / "stop").touch()
        self._process.wait(120)


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def wait_until(holds: Callable[[], bool], within_s: float, complaint: str, log: Path) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail(f"{complaint}\n{log.read_text(errors='replace')[-3_000:]}")
        time.sleep(0.1)


def values_in(server: Server, topic: str) -> list[int]:
    return [json.loads(record.value or b"")["id"] for record in records_in(server, topic)]


def values_of(home: Path, name: str) -> list[int]:
    rows = open_table(name, str(home / "tables" / "mill" / name)).read(["id"])
    return [int(value) for value in rows.column("id").to_pylist()]


def difference(found: list[int], expected: Counter[int]) -> dict[str, object]:
    """Empty if each is there as often as it should be."""
    counted = Counter(found)
    lost, extra = expected - counted, counted - expected
    told = {"lost": lost, "extra": extra}
    return {what: f"{numbers.total()}, of them {sorted(numbers)[:5]}" for what, numbers in told.items() if numbers}


def test_each_input_is_there_once_whatever_dies(start_server: StartServer, topic: str, tmp_path: Path) -> None:
    server = start_server()
    target = f"{topic}-out"
    for name in (topic, target):
        create(server, name, PARTITIONS)
    driver = Driver(tmp_path, {"server": server.line, "source": topic, "target": target})
    choose = random.Random(4)
    kills = ["worker"] * WORKER_KILLS + ["broker"] * BROKER_KILLS + ["driver"] * DRIVER_KILLS
    choose.shuffle(kills)
    killed: Counter[str] = Counter()
    try:
        driver.start()
        with Feed(server, topic):
            for kind in kills:
                time.sleep(choose.uniform(0.2, 2.5))  # a random moment, not a wait for anything
                if kind == "broker":
                    server.kill()
                    server.restart()
                elif kind == "driver":
                    driver.kill()
                    driver.start()
                else:
                    wait_until(lambda: driver.kill_worker(choose), READY_S, "there is no worker to kill", driver.log)
                killed[kind] += 1
        expected = Counter(values_in(server, topic))
        assert expected.total() > 1_000

        def all_there() -> bool:
            counts = [len(values_in(server, target)), *(len(values_of(tmp_path, name)) for name in FORMATS)]
            return min(counts) >= expected.total()

        wait_until(all_there, DONE_S, f"not all of {expected.total()} arrived", driver.log)
        driver.stop()
    finally:
        driver.kill()
    assert killed == Counter(worker=WORKER_KILLS, broker=BROKER_KILLS, driver=DRIVER_KILLS)
    assert difference(values_in(server, target), expected) == {}
    for name in FORMATS:
        assert difference(values_of(tmp_path, name), expected) == {}, name
    assert all(is_stable(server, target, partition) for partition in range(PARTITIONS))
