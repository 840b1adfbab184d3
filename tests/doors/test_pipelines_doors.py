"""Pipelines report through the binary protocol, and are found and stopped through it and HTTP."""

import httpx
import pytest

import penstock
from penstock.testing.server import Server


async def test_a_pipeline_is_found_and_asked_to_stop(server: Server, topic: str) -> None:
    async with penstock.Client(server.line) as client:
        assert await client.pipelines.report(topic, "r1", "running", {"records": 3, "rate": 1.5}) is False
        (mine,) = [one for one in await client.pipelines.list() if one.name == topic]
        assert (mine.run, mine.state, mine.report) == ("r1", "running", {"records": 3, "rate": 1.5})
        assert await client.pipelines.stop(topic) == 1
        assert await client.pipelines.report(topic, "r1", "stopped") is True
        assert await client.pipelines.stop(topic) == 0
        with pytest.raises(penstock.UnknownPipeline):
            await client.pipelines.stop(topic + "-gone")


def test_the_same_without_a_loop_and_over_http(server: Server, http: httpx.Client, topic: str) -> None:
    with penstock.SyncClient(server.line) as client:
        assert client.pipelines.report(topic, "r1", "idle", {"records": 3}) is False
        (mine,) = [one for one in client.pipelines.list() if one.name == topic]
        (shown,) = [one for one in http.get("/v1/pipelines").json()["pipelines"] if one["name"] == topic]
        assert shown == mine._asdict()
        asked = http.post(f"/v1/pipelines/{topic}/stop")
        assert (asked.status_code, asked.json()) == (202, {"runs": 1})
        assert client.pipelines.report(topic, "r1", "stopped") is True
        assert client.pipelines.stop(topic) == 0
    gone = http.post(f"/v1/pipelines/{topic}-gone/stop")
    assert (gone.status_code, gone.json()["code"]) == (404, "UnknownPipeline")
