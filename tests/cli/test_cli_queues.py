"""`penstock queue` and `penstock router` against a real server process."""

import json

from cli_command import TIMEOUT_S, run, run_json, texts

from penstock.testing import Server


def test_a_queue_lives_and_dies(server: Server, topic: str) -> None:
    view = f"{topic}/mail"
    assert (
        run(server, "queue", "create", view, "--set", "max_attempts=3", "--set", "lease-ms=5000") == f"created {view}\n"
    )
    assert "already" in run(server, "queue", "create", view, code=1)
    run(server, "queue", "create", view, "--if-not-exists")
    run(server, "publish", topic, *map(str, range(5)))
    told = run_json(server, "queue", "show", view)
    assert (told["topic"], told["queue"], told["paused"]) == (topic, "mail", False)
    assert told["settings"]["max_attempts"] == 3
    assert told["counts"]["pending"] == 5
    assert "max_attempts" in run(server, "queue", "show", view)
    run(server, "queue", "alter", view, "--set", "max_attempts=4")
    assert run_json(server, "queue", "show", view)["settings"]["max_attempts"] == 4

    [listed] = run_json(server, "queue", "list", topic)
    assert listed["queue"] == "mail"
    assert view in run(server, "queue", "list")
    peeked = run(server, "queue", "peek", view, "--max", "2", "--json").splitlines()
    assert [json.loads(line)["value"] for line in peeked] == ["0", "1"]
    assert f"{topic}-0 @0" in run(server, "queue", "peek", view)

    assert run(server, "queue", "pause", view) == f"paused {view}\n"
    assert run_json(server, "queue", "show", view)["paused"] is True
    assert texts(server, topic, "--view", "queue", "--name", "mail") == []
    assert run(server, "queue", "resume", view) == f"resumed {view}\n"
    assert "nobody to ask" in run(server, "queue", "purge", view, code=1)
    assert run(server, "queue", "purge", view, "--yes") == f"purged 5 messages of {view}\n"
    assert run(server, "queue", "redrive", view) == f"0 dead letters back in {view}\n"
    assert run(server, "queue", "delete", view, "--yes") == f"deleted {view}\n"
    assert "penstock: " in run(server, "queue", "show", view, code=1)


def test_dead_letters_come_back(server: Server, topic: str) -> None:
    run(server, "publish", topic, "x")
    with server.sync_client() as client, client.subscribe(topic, "queue") as subscription:
        next(subscription).reject()
        assert client.subscribe(f"{topic}.queue.dead").take(timeout_s=TIMEOUT_S)
    assert run_json(server, "queue", "redrive", topic) == {"topic": topic, "queue": "queue", "redriven": 1}
    assert texts(server, topic, "--view", "queue") == ["x"]


def test_a_wrong_setting_is_named(server: Server, topic: str) -> None:
    assert "max_attempts" in run(server, "queue", "create", topic, "--set", "max_attempts=-1", code=1)
    assert "no_such_thing" in run(server, "queue", "create", topic, "--set", "no_such_thing=1", code=1)


# -- routers ------------------------------------------------------------------------------------------------


def test_a_router_routes(server: Server, topic: str) -> None:
    assert run(server, "router", "create", topic, "--kind", "topic") == f"created {topic}\n"
    assert topic in run(server, "router", "create", topic, "--kind", "direct", code=1)
    run(server, "router", "bind", topic, f"{topic}-eu/mail", "--key", "eu.#")
    [listed] = [one for one in run_json(server, "router", "list") if one["router"] == topic]
    assert listed["kind"] == "topic"
    assert [(one["to"], one["key"]) for one in listed["bindings"]] == [(f"{topic}-eu/mail", "eu.#")]
    assert f"{topic}-eu/mail" in run(server, "router", "list")
    run(server, "publish", topic, "hello", "--key", "eu.order")
    run(server, "publish", topic, "howdy", "--key", "us.order")
    assert texts(server, f"{topic}-eu", "--view", "queue", "--name", "mail") == ["hello"]
    run(server, "router", "unbind", topic, f"{topic}-eu/mail", "--key", "eu.#")
    assert run(server, "router", "delete", topic, "--yes") == f"deleted {topic}\n"
    assert "penstock: " in run(server, "router", "bind", topic, "elsewhere", code=1)
