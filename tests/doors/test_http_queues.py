"""Queue views over HTTP: made, leased from, settled, and looked at."""

import threading

import httpx
import pytest

from penstock.testing.server import Server

WAIT_MS = 20_000


class Queue:
    def __init__(self, http: httpx.Client, topic: str, name: str = "work", **settings: object) -> None:
        self.http, self.topic = http, topic
        self.path = f"/v1/topics/{topic}/queues/{name}"
        made = http.post(f"/v1/topics/{topic}/queues", json={"name": name, "settings": settings})
        assert made.status_code == 201, made.text

    def publish(self, *values: str, **more: object) -> None:
        body = {"records": [{"value": value, **more} for value in values]}
        assert self.http.post(f"/v1/topics/{self.topic}/records", json=body).status_code == 200

    def lease(self, limit: int = 10, wait_ms: int = WAIT_MS, **more: object) -> list[dict[str, object]]:
        answer = self.http.post(self.path + "/lease", json={"limit": limit, "wait_ms": wait_ms, **more})
        assert answer.status_code == 200, answer.text
        messages: list[dict[str, object]] = answer.json()["messages"]
        return messages

    def settle(self, verb: str, *receipts: object, **more: object) -> list[bool]:
        answer = self.http.post(f"{self.path}/{verb}", json={"receipts": receipts, **more})
        assert answer.status_code == 200, answer.text
        results = answer.json()["results"]
        assert [result["receipt"] for result in results] == list(receipts)
        return [result["ok"] for result in results]

    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = self.http.get(self.path).json()["counts"]
        return counts

    def status(self, offset: int) -> str:
        return str(self.http.get(f"{self.path}/messages/0/{offset}").json()["status"])


def test_a_message_is_leased_acknowledged_and_gone(http: httpx.Client, topic: str) -> None:
    queue = Queue(http, topic)
    queue.publish("a", "b", key="k", headers={"h": "1"})
    first, second = queue.lease()
    assert (first["topic"], first["partition"], first["offset"], first["attempt"]) == (topic, 0, 0, 1)
    assert (first["key"], first["value"], first["headers"]) == ("k", "a", {"h": "1"})
    assert [queue.status(0), queue.status(1)] == ["processing", "processing"]
    assert queue.settle("ack", first["receipt"]) == [True]
    assert [queue.status(0), queue.status(1)] == ["processed", "processing"]
    assert queue.settle("release", second["receipt"]) == [True]
    assert [queue.status(0), queue.status(1)] == ["processed", "pending"]
    (again,) = queue.lease()
    assert (again["value"], again["receipt"] != second["receipt"]) == ("b", True)
    assert queue.settle("ack", again["receipt"]) == [True]
    counts = queue.counts()
    assert (counts["pending"], counts["processing"], counts["processed"]) == (0, 0, 2)
    assert queue.lease(wait_ms=0) == []


def test_a_lease_that_somebody_else_took_over_is_lost(http: httpx.Client, topic: str) -> None:
    queue = Queue(http, topic)
    queue.publish("a")
    (mine,) = queue.lease()
    queue.settle("release", mine["receipt"])
    (theirs,) = queue.lease()
    answer = http.post(queue.path + "/ack", json={"receipts": [mine["receipt"]]}).json()
    (result,) = answer["results"]
    assert (result["ok"], result["code"]) == (False, "LeaseLost")
    assert queue.settle("ack", theirs["receipt"]) == [True]


def test_a_nack_comes_again_after_its_delay_and_dies_after_the_last_attempt(http: httpx.Client, topic: str) -> None:
    http.post("/v1/topics", json={"name": topic + ".dead"})
    queue = Queue(http, topic, max_attempts=2, dead_letter=topic + ".dead")
    queue.publish("bad")
    (first,) = queue.lease()
    assert queue.settle("nack", first["receipt"], delay_ms=0) == [True]
    (second,) = queue.lease()
    assert second["attempt"] == 2
    queue.settle("nack", second["receipt"], delay_ms=0)
    dead = http.get(f"/v1/topics/{topic}.dead/partitions/0/records", params={"wait_ms": WAIT_MS}).json()["records"]
    assert [record["value"] for record in dead] == ["bad"]
    assert dead[0]["headers"]["penstock-dead-reason"] == "max-attempts"
    assert dead[0]["headers"]["penstock-dead-topic"] == topic
    redriven = http.post(queue.path + "/redrive", json={"limit": 10})
    assert redriven.json() == {"count": 1}
    (back,) = queue.lease()
    assert back["value"] == "bad"


def test_a_rejected_message_goes_to_the_dead_letters_at_once(http: httpx.Client, topic: str) -> None:
    http.post("/v1/topics", json={"name": topic + ".dead"})
    queue = Queue(http, topic, dead_letter=topic + ".dead")
    queue.publish("bad")
    (message,) = queue.lease()
    assert queue.settle("reject", message["receipt"]) == [True]
    answer = http.get(f"/v1/topics/{topic}.dead/partitions/0/records", params={"wait_ms": WAIT_MS})
    assert answer.json()["records"][0]["headers"]["penstock-dead-reason"] == "rejected"


def test_leasing_waits_for_the_first_message(http: httpx.Client, server: Server, topic: str) -> None:
    queue = Queue(http, topic)
    leased: list[object] = []

    def lease() -> None:
        with httpx.Client(base_url=server.http, timeout=60) as other:
            answer = other.post(queue.path + "/lease", json={"limit": 5, "wait_ms": WAIT_MS})
            leased.extend(message["value"] for message in answer.json()["messages"])

    waiting = threading.Thread(target=lease)
    waiting.start()
    queue.publish("late")
    waiting.join(timeout=30)
    assert leased == ["late"]


def test_what_is_leased_for_a_client_that_has_gone_goes_back_at_once(
    http: httpx.Client, server: Server, topic: str
) -> None:
    queue = Queue(http, topic, lease_ms=600_000)
    with httpx.Client(base_url=server.http, timeout=0.3) as impatient, pytest.raises(httpx.ReadTimeout):
        impatient.post(queue.path + "/lease", json={"limit": 5, "wait_ms": WAIT_MS})
    queue.publish("for somebody else")
    (message,) = queue.lease()
    assert (message["value"], message["attempt"]) == ("for somebody else", 1)


def test_an_extended_lease_is_kept(http: httpx.Client, topic: str) -> None:
    queue = Queue(http, topic, lease_ms=60_000)
    queue.publish("a")
    (message,) = queue.lease(lease_ms=30_000)
    assert queue.settle("extend", message["receipt"], lease_ms=60_000) == [True]
    assert queue.lease(wait_ms=0) == []
    assert queue.settle("ack", message["receipt"]) == [True]


def test_a_step_settles_and_publishes_once(http: httpx.Client, topic: str) -> None:
    queue = Queue(http, topic)
    queue.publish("order")
    (message,) = queue.lease()
    ask = {
        "step": "invoice-1",
        "receipts": [message["receipt"]],
        "publish": [{"topic": topic + ".out", "records": [{"value": {"invoice": 1}, "key": "o1"}]}],
    }
    assert http.post(queue.path + "/step", json=ask).json() == {"step": "invoice-1", "repeated": False}
    assert http.post(queue.path + "/step", json=ask).json() == {"step": "invoice-1", "repeated": True}
    out = http.get(f"/v1/topics/{topic}.out/partitions/0/records").json()["records"]
    assert [(record["key"], record["value"]) for record in out] == [("o1", {"invoice": 1})]
    assert queue.status(0) == "processed"


def test_pause_peek_purge_and_resume(http: httpx.Client, topic: str) -> None:
    queue = Queue(http, topic)
    queue.publish("a", "b", "c")
    peeked = http.get(queue.path + "/peek", params={"limit": 2}).json()["messages"]
    assert [message["value"] for message in peeked] == ["a", "b"]
    assert http.post(queue.path + "/pause").json()["paused"] is True
    assert queue.lease(wait_ms=0) == []
    assert http.post(queue.path + "/purge").json() == {"count": 3}
    assert http.post(queue.path + "/resume").json()["paused"] is False
    queue.publish("d")
    assert [message["value"] for message in queue.lease()] == ["d"]


def test_views_are_listed_altered_and_deleted(http: httpx.Client, topic: str) -> None:
    queue = Queue(http, topic, max_attempts=3)
    again = http.post(f"/v1/topics/{topic}/queues", json={"name": "work"})
    assert (again.status_code, again.json()["code"]) == (409, "ViewExists")
    kept = http.put(queue.path, json={"settings": {"max_attempts": 9}}).json()
    assert kept["settings"]["max_attempts"] == 3
    altered = http.patch(queue.path, json={"settings": {"lease_ms": 5_000}, "matches": [{"pattern": "a.*"}]}).json()
    assert (altered["settings"]["max_attempts"], altered["settings"]["lease_ms"]) == (3, 5_000)
    assert altered["sources"] == [{"topic": topic, "matches": [{"pattern": "a.*"}]}]
    (listed,) = http.get(f"/v1/topics/{topic}/queues").json()["queues"]
    assert listed["name"] == "work"
    assert (topic, "work") in [(q["topic"], q["name"]) for q in http.get("/v1/queues").json()["queues"]]
    assert http.delete(queue.path).status_code == 204
    for answer in (http.get(queue.path), http.delete(queue.path), http.post(queue.path + "/lease", json={})):
        assert (answer.status_code, answer.json()["code"]) == (404, "UnknownView")


def test_a_view_takes_only_what_matches_and_begins_where_it_is_told(http: httpx.Client, topic: str) -> None:
    http.post(f"/v1/topics/{topic}/records", json={"value": "before", "key": "a"})
    body = {"name": "late", "start": "latest", "matches": [{"key": "a"}]}
    assert http.post(f"/v1/topics/{topic}/queues", json=body).status_code == 201
    records = [{"value": "1", "key": "b"}, {"value": "2", "key": "a"}]
    http.post(f"/v1/topics/{topic}/records", json={"records": records})
    answer = http.post(f"/v1/topics/{topic}/queues/late/lease", json={"limit": 9, "wait_ms": WAIT_MS})
    assert [message["value"] for message in answer.json()["messages"]] == ["2"]


def test_what_is_wrong_with_a_settlement_is_said(http: httpx.Client, topic: str) -> None:
    queue = Queue(http, topic)
    for receipt in ("", "x", "1", "1-", "-1-2", "1-2-3", "9" * 40 + "-1"):
        refused = http.post(queue.path + "/ack", json={"receipts": [receipt]})
        assert (refused.status_code, refused.json()["code"]) == (400, "InvalidRequest"), receipt
    bad = http.patch(queue.path, json={"settings": {"no_such": 1}})
    assert (bad.status_code, bad.json()["code"]) == (400, "InvalidRequest")
    bad = http.post(f"/v1/topics/{topic}/queues", json={"name": "x", "settings": {"lease_ms": -1}})
    assert (bad.status_code, bad.json()["code"]) == (400, "InvalidSetting")
    bad = http.post(f"/v1/topics/{topic}/queues", json={"name": "no spaces"})
    assert (bad.status_code, bad.json()["code"]) == (400, "InvalidViewName")
    bad = http.get(queue.path + "/messages/zero/1")
    assert (bad.status_code, bad.json()["code"]) == (400, "InvalidRequest")


def test_routers_and_bindings(http: httpx.Client, topic: str) -> None:
    made = http.post("/v1/routers", json={"name": topic, "kind": "topic"})
    assert (made.status_code, made.json()) == (201, {"name": topic, "kind": "topic", "bindings": []})
    other = http.post("/v1/routers", json={"name": topic, "kind": "fanout"})
    assert (other.status_code, other.json()["code"]) == (409, "RouterExists")
    binding = {"to": f"{topic}.eu", "key": "orders.eu.#"}
    bound = http.post(f"/v1/routers/{topic}/bindings", json=binding).json()
    assert bound["bindings"] == [binding]
    http.post(f"/v1/routers/{topic}/bindings", json={"to": f"{topic}/eu-queue", "key": "orders.eu.#"})
    records = [{"value": "1", "key": "orders.us.1"}, {"value": "2", "key": "orders.eu.1"}]
    http.post(f"/v1/topics/{topic}/records", json={"records": records})
    copied = http.get(f"/v1/topics/{topic}.eu/partitions/0/records", params={"wait_ms": WAIT_MS}).json()["records"]
    assert [record["value"] for record in copied] == ["2"]
    leased = http.post(f"/v1/topics/{topic}/queues/eu-queue/lease", json={"limit": 9, "wait_ms": WAIT_MS}).json()
    assert [message["value"] for message in leased["messages"]] == ["2"]
    assert topic in [router["name"] for router in http.get("/v1/routers").json()["routers"]]
    unbound = http.request("DELETE", f"/v1/routers/{topic}/bindings", json=binding).json()
    assert [each["to"] for each in unbound["bindings"]] == [f"{topic}/eu-queue"]
    assert http.delete(f"/v1/routers/{topic}").status_code == 204
    assert http.get(f"/v1/routers/{topic}").json()["code"] == "UnknownRouter"
