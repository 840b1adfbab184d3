"""The order service's story: orders go on while the e-mail worker is down, and every order gets its e-mail.

Told with `nc` alone. The shop sends an order again when it is not sure that it arrived; the server is killed and comes
back on the same data; the worker leaves in the middle of its work. In the end each order was e-mailed once.
"""

import re

import pytest
from netcat import Netcat, pipe

from penstock.testing.server import Server
from servers import AGAINST_KAFKA, only_penstock

pytestmark = only_penstock

pytestmark = pytest.mark.skipif(AGAINST_KAFKA, reason="Kafka has no such door")

ORDERS = 60
SUBSCRIBE = "SUBSCRIBE orders/queue/email ordered_by_key=yes credit=5 meta=yes\r\n"


class Shop:
    """Numbers its orders, so that sending one twice does no harm."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def order(self, number: int) -> None:
        payload = f'{{"order_id":{number}}}'
        command = f"PUB orders {len(payload)} key=order-{number} producer=shop seq={number}\r\n{payload}"
        assert pipe(self._server.line, command.encode()).startswith(b"OK ")


class EmailWorker:
    def __init__(self, server: Server, sent: list[str]) -> None:
        self._nc = Netcat(server.line)
        self._sent = sent
        self._nc.say(SUBSCRIBE)
        assert self._nc.line() == "OK orders/queue/email"

    def receive(self) -> tuple[str, str]:
        """The id and key of the next message, whatever answers come before it."""
        while not (line := self._nc.line()).startswith("MSG "):
            assert line == "OK"
        size = int(line.split(" ")[2])
        self._nc.exactly(size + 2)
        (key,) = re.findall(r" key=(\S+)", line)
        return line.split(" ")[1], key

    def send_one(self) -> None:
        name, key = self.receive()
        self._sent.append(key)
        self._nc.say(f"ACK {name}\r\n")

    def all_acked(self) -> None:
        """Whatever else was delivered meanwhile is left where it is."""
        self._nc.say("PING\r\n")
        while (line := self._nc.line()) != "PONG":
            if line.startswith("MSG "):
                self._nc.exactly(int(line.split(" ")[2]) + 2)

    def crash(self) -> None:
        self._nc.close()


def test_every_order_gets_its_email_although_the_worker_was_down(fresh_server: Server) -> None:
    server, sent = fresh_server, []
    shop = Shop(server)
    for number in range(1, 11):
        shop.order(number)

    worker = EmailWorker(server, sent)
    for _ in range(4):
        worker.send_one()
    worker.all_acked()
    worker.crash()  # with more orders in its hands that it did not come to

    for number in range(8, ORDERS // 2):  # the shop was not sure about 8, 9 and 10
        shop.order(number)
    server.kill()
    server.restart()
    for number in range(ORDERS // 2 - 3, ORDERS + 1):
        shop.order(number)
    server.restart()

    worker = EmailWorker(server, sent)
    while len(sent) < ORDERS:
        worker.send_one()
    worker.all_acked()
    assert sorted(sent, key=lambda key: int(key.split("-")[1])) == [f"order-{n}" for n in range(1, ORDERS + 1)]

    worker.crash()
    server.restart()
    later = EmailWorker(server, sent)
    shop.order(ORDERS + 1)
    assert later.receive()[1] == f"order-{ORDERS + 1}"  # nothing else was left
    later.crash()


def test_a_second_worker_reads_the_same_orders_for_itself(fresh_server: Server) -> None:
    """The analytics worker of the design: it fetches by offset, at its own pace, and remembers how far it came."""
    shop = Shop(fresh_server)
    for number in range(1, 6):
        shop.order(number)
    EmailWorker(fresh_server, []).crash()
    answer = pipe(fresh_server.line, b"FETCH orders 0 count=3\r\nCOMMIT analytics orders 3\r\n")
    assert re.findall(rb'"order_id":(\d+)', answer) == [b"1", b"2", b"3"]
    assert answer.endswith(b"END 3\r\nOK\r\n")
    fresh_server.restart()
    assert pipe(fresh_server.line, b"COMMITTED analytics orders\r\n") == b"OK 3\r\n"
    with Netcat(fresh_server.line) as nc:
        nc.say("SUBSCRIBE orders/log group=analytics\r\n")
        assert nc.line() == "OK orders/log"
        assert [nc.message()[1] for _ in range(2)] == ['{"order_id":4}', '{"order_id":5}']
