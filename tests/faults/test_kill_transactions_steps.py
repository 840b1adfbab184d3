"""`kill -9` while a driver and its tasks write named steps: every row is there once, whatever died on the way.

The driver does what Spark does: each epoch has its rows, spread over tasks; each task opens a writer of its own and
writes to every partition; some are there twice. When anything fails the whole epoch is done again, under the same name
and mark. The server dies at moments that nobody chose.
"""

import itertools
import random
import threading
import time
from collections import Counter

from story import WAIT_S, eventually

from penstock.client.blocking import BlockingConnection
from penstock.model.batch import TRANSACTIONAL, decode_batch, encode_batch, walk
from penstock.model.errors import PenstockError, StorageFailed
from penstock.model.record import Record
from penstock.testing.server import Server
from penstock.wire.native import messages as wire
from servers import StartServer
from thorough import often

KILLS = often(12, 6)
PARTITIONS = 3
TASKS = 3
ROWS_PER_TASK = 4


class Driver:
    def __init__(self, server: Server, topic: str) -> None:
        self.epoch = 0
        self.repeats = 0
        self.failure: BaseException | None = None
        self._server, self._topic = server, topic
        self._dice = random.Random(7)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                try:
                    with BlockingConnection(self._server.line, timeout_s=WAIT_S) as connection:
                        while True:  # it ends between epochs, so that nothing is left open
                            self._do(connection, self.epoch)
                            self.epoch += 1
                            if self._ended.is_set():
                                return
                except (PenstockError, OSError):  # the server died: what was begun is done again
                    self.repeats += 1
                    time.sleep(0.01)
        except BaseException as error:
            self.failure = error

    def _do(self, connection: BlockingConnection, epoch: int) -> None:
        counted = []
        for task in range(TASKS):
            for attempt in range(2 if self._dice.random() < 0.2 else 1):
                opened = connection.request(wire.OpenWriter(self._topic, epoch, f"task {task}.{attempt}", 60_000))
                if opened.done:
                    assert opened.mark == str(epoch)
                    return
                self._write(connection, opened.producer_id, epoch, task)
            counted.append(opened.producer_id)  # the last attempt counts
        offsets = [("progress", self._topic, 0, epoch + 1)]
        connection.request(wire.CommitStep(self._topic, epoch, counted, str(epoch), offsets))

    def _write(self, connection: BlockingConnection, producer_id: int, epoch: int, task: int) -> None:
        batches = []
        for partition in range(PARTITIONS):
            rows = [Record(row, 0, None, f"{epoch}/{task}/{partition}/{row}".encode()) for row in range(ROWS_PER_TASK)]
            batch = encode_batch(
                rows, attributes=TRANSACTIONAL, producer_id=producer_id, producer_epoch=0, base_sequence=0
            )
            batches.append(wire.Batch(self._topic, partition, bytes(batch)))
        for stored in connection.request(wire.Publish(-1, batches)).results:
            if stored.error is not None:
                raise StorageFailed(f"{stored.error}: {stored.message}")


def read_rows(server: Server, topic: str) -> Counter[bytes]:
    """What a reader of committed records sees, of all partitions."""
    rows: Counter[bytes] = Counter()
    with BlockingConnection(server.line, timeout_s=WAIT_S) as connection:
        for partition in range(PARTITIONS):
            bounds = connection.request(wire.ListOffsets(topic, partition))
            assert bounds.stable == bounds.end, "nothing is left open"
            offset = bounds.start
            while offset < bounds.end:
                fetched = connection.request(wire.Fetch(topic, partition, offset, 1 << 20, 0))
                for header in walk(fetched.batches):
                    for record in decode_batch(fetched.batches, header.position):
                        if record.offset >= offset:
                            rows[record.value or b""] += 1
                assert fetched.next_offset > offset
                offset = fetched.next_offset
    return rows


def test_every_row_of_every_epoch_is_there_once(start_server: StartServer, topic: str) -> None:
    server = start_server()
    with server.sync_client() as client:
        client.create_topic(topic, PARTITIONS)
    driver = Driver(server, topic)
    dice = random.Random(11)
    for _ in range(KILLS):
        goal = driver.epoch + 2
        eventually(lambda goal=goal: driver.failure or driver.epoch >= goal, "epochs are committed")
        time.sleep(dice.random() * 0.05)  # so that it dies anywhere within an epoch
        server.kill()
        server.restart()
    eventually(lambda goal=driver.epoch + 2: driver.failure or driver.epoch >= goal, "epochs are committed")
    driver.end()
    assert driver.repeats
    expected = {
        f"{epoch}/{task}/{partition}/{row}".encode()
        for epoch, task, partition, row in itertools.product(
            range(driver.epoch), range(TASKS), range(PARTITIONS), range(ROWS_PER_TASK)
        )
    }
    rows = read_rows(server, topic)
    assert max(rows.values()) == 1, "a row is there twice"
    assert rows.keys() == expected, "what was committed is there, and nothing else"
    with server.sync_client() as client:
        assert client.committed("progress") == {(topic, 0): driver.epoch}
