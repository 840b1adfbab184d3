"""What HTTP acknowledged is there after kill -9: records, settlements, commits, numbers of producers."""

import threading
from typing import Any

import httpx

from penstock.testing.server import Server


def test_everything_acknowledged_survives(fresh_server: Server) -> None:
    server = fresh_server
    with httpx.Client(base_url=server.http, timeout=30) as http:
        numbered = {"topic": "orders", "value": "numbered", "producer": "till", "sequence": 3}
        placed = http.post("/v1/produce", json=numbered).json()
        keyed = http.post("/v1/topics/orders/records", json={"value": "keyed"}, headers={"idempotency-key": "k"}).json()
        for n in range(10):
            assert http.post("/v1/topics/orders/records", json={"value": str(n)}).status_code == 200
        assert http.put("/v1/topics/orders/queues/work").status_code == 200
        leased = http.post("/v1/topics/orders/queues/work/lease", json={"limit": 12, "wait_ms": 20_000}).json()[
            "messages"
        ]
        done = [message["receipt"] for message in leased[:5]]
        assert all(
            r["ok"] for r in http.post("/v1/topics/orders/queues/work/ack", json={"receipts": done}).json()["results"]
        )
        commit = {"group": "g", "topic": "orders", "partition": 0, "offset": 7}
        assert http.post("/v1/commit-offset", json=commit).status_code == 204
    server.kill()
    server.restart()
    with httpx.Client(base_url=server.http, timeout=30) as http:
        assert http.post("/v1/produce", json=numbered).json() == placed
        again = http.post("/v1/topics/orders/records", json={"value": "keyed"}, headers={"idempotency-key": "k"})
        assert again.json() == keyed
        records = http.get("/v1/topics/orders/partitions/0/records").json()["records"]
        assert [record["value"] for record in records] == ["numbered", "keyed", *map(str, range(10))]
        rest = http.post("/v1/topics/orders/queues/work/lease", json={"limit": 20, "wait_ms": 20_000}).json()[
            "messages"
        ]
        assert [message["offset"] for message in rest] == list(range(5, 12))
        consumed = http.post("/v1/consume", json={"group": "g", "topic": "orders"}).json()["records"]
        assert [record["offset"] for record in consumed] == list(range(7, 12))


def test_a_server_killed_amid_publishing_has_all_that_it_acknowledged(fresh_server: Server) -> None:
    server = fresh_server
    acknowledged: list[set[str]] = [set() for _ in range(4)]
    enough = threading.Event()

    def produce(number: int) -> None:
        with httpx.Client(base_url=server.http, timeout=30) as http:
            for n in range(100_000):
                value = f"{number}.{n}"
                try:
                    answer = http.post("/v1/topics/t/records", json={"value": value})
                except httpx.TransportError:
                    return
                assert answer.status_code == 200
                acknowledged[number].add(value)
                if len(acknowledged[number]) >= 50:
                    enough.set()

    producers = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    for producer in producers:
        producer.start()
    assert enough.wait(30)
    server.kill()
    for producer in producers:
        producer.join(30)
    server.restart()
    stored = []
    with httpx.Client(base_url=server.http, timeout=30) as http:
        ask: dict[str, Any] = {"offset": 0, "max_records": 10_000}
        while records := http.get("/v1/topics/t/partitions/0/records", params=ask).json()["records"]:
            stored += [record["value"] for record in records]
            ask["offset"] = records[-1]["offset"] + 1
    assert len(stored) == len(set(stored))
    assert set().union(*acknowledged) <= set(stored)
