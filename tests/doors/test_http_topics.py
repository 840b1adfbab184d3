"""Topics over HTTP: what can be made, looked at, changed and deleted."""

import httpx

from penstock.testing.server import Server


def test_a_topic_is_made_shown_altered_and_deleted(http: httpx.Client, topic: str) -> None:
    made = http.post("/v1/topics", json={"name": topic, "partitions": 2, "settings": {"retention.ms": 60_000}})
    assert made.status_code == 201
    assert made.headers["location"] == f"/v1/topics/{topic}"
    assert made.json()["settings"] == {"retention.ms": "60000"}
    assert made.json()["offsets"] == [{"partition": p, "start_offset": 0, "end_offset": 0} for p in (0, 1)]

    changed = http.patch(
        f"/v1/topics/{topic}", json={"partitions": 3, "settings": {"retention.ms": None, "cleanup.policy": "compact"}}
    )
    assert changed.status_code == 200
    assert (changed.json()["partitions"], changed.json()["settings"]) == (3, {"cleanup.policy": "compact"})
    assert http.get(f"/v1/topics/{topic}").json() == changed.json()
    (listed,) = http.get("/v1/topics", params={"prefix": topic}).json()["topics"]
    assert listed == {k: v for k, v in changed.json().items() if k != "offsets"}

    assert http.delete(f"/v1/topics/{topic}").status_code == 204
    gone = http.get(f"/v1/topics/{topic}")
    assert (gone.status_code, gone.json()["code"]) == (404, "UnknownTopic")


def test_the_brokers_own_topics_are_shown_only_when_asked_for(http: httpx.Client) -> None:
    usual = {t["name"] for t in http.get("/v1/topics").json()["topics"]}
    all_of_them = {t["name"] for t in http.get("/v1/topics", params={"internal": "true"}).json()["topics"]}
    own = {name for name in all_of_them if name.startswith("__penstock_")}
    assert "__penstock_catalogue" in own
    assert all_of_them - own == usual
    refused = http.delete("/v1/topics/__penstock_catalogue")
    assert (refused.status_code, refused.json()["code"]) == (403, "NotAllowed")


def test_what_is_wrong_with_a_topic_is_said(http: httpx.Client, topic: str) -> None:
    def code(answer: httpx.Response) -> tuple[int, str]:
        assert answer.headers["content-type"] == "application/problem+json"
        return answer.status_code, answer.json()["code"]

    assert http.post("/v1/topics", json={"name": topic}).status_code == 201
    assert code(http.post("/v1/topics", json={"name": topic})) == (409, "TopicExists")
    assert code(http.post("/v1/topics", json={"name": "no spaces"})) == (400, "InvalidTopicName")
    unknown = {"name": topic + "-b", "settings": {"no.such": 1}}
    assert code(http.post("/v1/topics", json=unknown)) == (400, "InvalidSetting")
    assert code(http.patch(f"/v1/topics/{topic}", json={"partitions": 1})) == (400, "InvalidPartitions")
    assert code(http.patch(f"/v1/topics/{topic}", json={})) == (400, "InvalidRequest")
    assert code(http.patch(f"/v1/topics/{topic}-c", json={"partitions": 9})) == (404, "UnknownTopic")
    # Both or neither: the settings were fine, the number of partitions was not.
    both = {"partitions": 1, "settings": {"retention.ms": 1}}
    assert code(http.patch(f"/v1/topics/{topic}", json=both)) == (400, "InvalidPartitions")
    assert http.get(f"/v1/topics/{topic}").json()["settings"] == {}


def test_mbrokers_two_settings_become_those_of_the_log(http: httpx.Client, topic: str) -> None:
    http.post(f"/topics/{topic}", json={"compaction_enabled": False, "retention_duration_secs": 300})
    assert http.get(f"/v1/topics/{topic}").json()["settings"] == {"retention.ms": "300000"}
    http.post(f"/topics/{topic}-2", json={"compaction_enabled": True, "retention_duration_secs": 300})
    settings = http.get(f"/v1/topics/{topic}-2").json()["settings"]
    assert settings == {"retention.ms": "300000", "cleanup.policy": "compact,delete"}
    http.post(f"/topics/{topic}-3", json={"compaction_enabled": True})
    assert http.get(f"/v1/topics/{topic}-3").json()["settings"] == {"cleanup.policy": "compact"}
    again = http.post(f"/topics/{topic}-3", json={})
    assert (again.status_code, again.json()["code"]) == (409, "TopicExists")


def test_a_server_that_makes_no_topics_on_first_use_says_so(start_server) -> None:  # type: ignore[no-untyped-def]
    strict: Server = start_server(auto_create_topics=False)
    with httpx.Client(base_url=strict.http) as http:
        refused = http.post("/v1/topics/nobody/records", json={"value": "x"})
        assert (refused.status_code, refused.json()["code"]) == (404, "UnknownTopic")
        assert refused.json()["retriable"] is True
