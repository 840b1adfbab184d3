"""`make demo`: a broker, a shop that posts orders by HTTP, fridges that send temperatures by UDP, and Spark.

Everything runs on this machine, on free ports and in a temporary directory, and is gone when the demo ends: by itself,
or by Ctrl-C. A minute of the shop takes two seconds here, so that revenue per minute is something to look at.
"""

import argparse
import http.client
import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

import penstock
from penstock.testing import Server

PIPELINE = Path(__file__).with_name("revenue.py")
NAME = "revenue"
SECONDS = 90.0
MINUTE_S = 2.0  # how long a minute of the shop takes
ORDERS_PER_S = 60
READINGS_PER_S = 10
SHOWN = 10
START_S = 240.0  # Spark starts within seconds, on a busy machine within minutes
STOP_S = 120.0
# Ctrl-C is for the demo, which then stops the others in the right order.
APART = "import os; os.setsid(); from penstock.__main__ import main; main()"
COUNTRIES = ("NL", "DE", "FR", "BE", "ES")


class Shop:
    """Posts orders, a few at a time, and knows what it has sold in each minute."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._opened = datetime.now(UTC).replace(second=0, microsecond=0)
        self._began = time.monotonic()
        self._numbers = itertools.count(1)
        self.orders = 0
        self.revenue: dict[datetime, float] = {}

    def trade(self, stopped: threading.Event) -> None:
        connection = http.client.HTTPConnection(self._address, timeout=10)
        while not stopped.wait(0.25):
            orders = [self._order() for _ in range(ORDERS_PER_S // 4)]
            lines = "".join(json.dumps({"key": order["country"], "value": order}) + "\n" for order in orders)
            headers = {"Content-Type": "application/x-ndjson"}
            connection.request("POST", "/v1/topics/orders/records", lines, headers)
            answer = connection.getresponse()
            said = answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"the order was not taken: {answer.status} {said[:200]!r}")
            for order in orders:
                minute = datetime.fromisoformat(order["at"]).replace(second=0, microsecond=0)
                self.revenue[minute] = self.revenue.get(minute, 0.0) + order["amount"]
            self.orders += len(orders)
        connection.close()

    def _order(self) -> dict[str, Any]:
        passed = timedelta(minutes=(time.monotonic() - self._began) / MINUTE_S)
        amount = float(random.randint(1, 150) if random.random() < 0.98 else random.randint(150, 250))
        at = (self._opened + passed).isoformat(timespec="seconds")
        return {"order_id": next(self._numbers), "country": random.choice(COUNTRIES), "amount": amount, "at": at}


class Fridges:
    """Send their temperature, one datagram each, and do not care who listens."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._address = host, int(port)
        self.readings = 0

    def hum(self, stopped: threading.Event) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            while not stopped.wait(1 / READINGS_PER_S):
                degrees = round(random.gauss(4.0, 1.2), 1)
                fridge = random.randint(1, 9)
                out.sendto(f'readings fridge-{fridge}\n{{"degrees": {degrees}}}'.encode(), self._address)
                self.readings += 1


class Demo:
    def __init__(self, home: Path, console: Console) -> None:
        self.home = home
        self.console = console
        self.alerts: deque[str] = deque(maxlen=SHOWN)
        self.alert_count = 0
        self.minutes: dict[datetime, tuple[float, int]] = {}
        self.doing = "Starting Spark"
        self.report: dict[str, Any] = {}
        self.state = "starting"

    # -- what is seen -------------------------------------------------------------------------------------------

    def look(self, client: penstock.SyncClient, alerts: Any) -> None:
        for one in client.pipelines.list():
            self.state, self.report = one.state, dict(one.report)
        for message in alerts.take(1_000, 0.2):
            told = json.loads(message.value)
            what = f"{told.pop('alert')}: {', '.join(f'{name} {value}' for name, value in told.items())}"
            self.alerts.append(f"{message.key.decode()}  {what}")
            self.alert_count += 1
        self.minutes = self._revenue()

    def _revenue(self) -> dict[datetime, tuple[float, int]]:
        import pyarrow.dataset as dataset

        place = self.home / "pipeline" / "tables" / "revenue"
        files = [str(path) for path in place.glob("*.parquet")]
        if not files:
            return {}
        try:
            rows = dataset.dataset(files, format="parquet").to_table().to_pylist()
        except OSError:
            return self.minutes  # small files are being put together
        return {row["minute"].astimezone(UTC): (row["revenue"], row["orders"]) for row in rows}

    def render(self, shop: Shop, fridges: Fridges) -> RenderableType:
        revenue = Table("Minute", "Revenue", "Orders", title="Table: revenue per minute", box=box.SIMPLE_HEAD)
        for minute in sorted(self.minutes)[-SHOWN:]:
            sold, orders = self.minutes[minute]
            revenue.add_row(f"{minute:%H:%M}", f"{sold:,.2f}", f"{orders:,}")
        alerts = Table("Alert", title=f"Topic: alerts ({self.alert_count:,})", box=box.SIMPLE_HEAD, min_width=44)
        for alert in self.alerts:
            alerts.add_row(alert)
        grid = Table.grid(padding=(0, 4))
        grid.add_row(revenue, alerts)
        numbers = [
            f"{label} {self.report[name]:,}"
            for name, label in (("rows", "rows"), ("rows_per_s", "rows/s"), ("lag", "lag"), ("batch", "batch"))
            if isinstance(self.report.get(name), int | float)
        ]
        return Group(
            Text(self.doing, style="bold"),
            Text(f"sent: {shop.orders:,} orders by HTTP, {fridges.readings:,} readings by UDP"),
            Text(f"pipeline: {self.state}   {'   '.join(numbers)}"),
            grid,
        )

    def verdict(self, shop: Shop) -> str:
        """Whether every minute of the table has the revenue that the shop has counted."""
        wrong = [
            minute for minute, (sold, _) in self.minutes.items() if abs(sold - shop.revenue.get(minute, 0.0)) > 0.005
        ]
        if wrong:
            return f"{len(wrong)} of {len(self.minutes)} minutes differ from what the shop has sold: {wrong[:3]}"
        total = sum(sold for sold, _ in self.minutes.values())
        return f"{len(self.minutes)} minutes, {total:,.2f} in all: each order counted exactly once"


@contextmanager
def running_pipeline(server: Server, home: Path, master: str) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "penstock", "pipeline", "run", str(PIPELINE), "--server", server.line]
    command += ["--name", NAME, "--checkpoint", str(home / "pipeline"), "--trigger", "2 seconds", "--quick"]
    command += ["--master", master, "--json"]
    with (home / "pipeline.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=home
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextmanager
def background(*works: Callable[[threading.Event], None]) -> Iterator[threading.Event]:
    stopped = threading.Event()
    threads = [threading.Thread(target=work, args=(stopped,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield stopped
    finally:
        stopped.set()
        for thread in threads:
            thread.join(15)


def live_view(demo: Demo, shop: Shop, fridges: Fridges, console: Console) -> AbstractContextManager[object]:
    if not console.is_terminal:
        return nullcontext()
    return Live(get_renderable=lambda: demo.render(shop, fridges), console=console, refresh_per_second=4)


def run(seconds: float, master: str, console: Console) -> int:
    home = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        with Server(data=home / "data", command=(sys.executable, "-c", APART)) as server:
            return show(server, home, seconds, master, console)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def show(server: Server, home: Path, seconds: float, master: str, console: Console) -> int:
    shop, fridges, demo = Shop(server.doors["http"]), Fridges(server.udp), Demo(home, console)
    console.print(f"broker: line door {server.line}, HTTP {server.http}, UDP {server.udp}, Kafka {server.kafka}")
    console.print(f"look yourself: penstock subscribe alerts --server {server.line}")
    with server.sync_client() as client:
        for topic in ("orders", "readings", "alerts"):
            client.create_topic(topic, 2)
        with (
            background(shop.trade, fridges.hum) as closed,
            running_pipeline(server, home, master) as pipeline,
            client.subscribe("alerts", "log") as alerts,
            live_view(demo, shop, fridges, console),
        ):
            try:
                went = watch(demo, shop, client, alerts, pipeline, seconds)
            except KeyboardInterrupt:
                went = True
            if went:
                closed.set()
                demo.doing = "Stopping: the batch under way is finished"
                if pipeline.poll() is None:
                    client.pipelines.stop(NAME)
                    pipeline.wait(STOP_S)
                demo.look(client, alerts)
                demo.doing = "Done"
    if not went or pipeline.returncode != 0:
        console.print((home / "pipeline.log").read_text(errors="replace")[-3_000:], style="red", markup=False)
        return 1
    console.print(f"sent {shop.orders:,} orders by HTTP and {fridges.readings:,} readings by UDP")
    console.print(f"table: {demo.verdict(shop)}")
    console.print(f"topic: {demo.alert_count:,} alerts; the newest: {demo.alerts[-1] if demo.alerts else 'none'}")
    return 1 if "differ" in demo.verdict(shop) else 0


def watch(demo: Demo, shop: Shop, client: Any, alerts: Any, pipeline: Any, seconds: float) -> bool:
    """Until the time is over, which begins with the first row of the table. False: the pipeline has ended."""
    deadline, told = time.monotonic() + START_S, 0.0
    counting = False
    while time.monotonic() < deadline:
        if pipeline.poll() is not None:
            return False
        demo.look(client, alerts)
        if demo.minutes and not counting:
            counting, deadline = True, time.monotonic() + seconds
        left = deadline - time.monotonic()
        demo.doing = f"Running, {left:.0f} s to go; Ctrl-C ends it sooner" if counting else "Starting Spark"
        if not demo.console.is_terminal and time.monotonic() - told > 5:
            told = time.monotonic()
            rows = demo.report.get("rows")
            demo.console.print(
                f"{demo.state}: {shop.orders:,} orders sent, {rows or 0:,} rows read, "
                f"{len(demo.minutes)} minutes in the table, {demo.alert_count:,} alerts"
            )
    return counting


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long it runs once there are results")
    parser.add_argument("--master", default="local[2]", help="where Spark runs")
    given = parser.parse_args()
    console = Console()
    try:
        return run(given.seconds, given.master, console)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
