"""`penstock group` against a real server process. Members come through the Kafka door."""

import re
from typing import Any

from cli_command import eventually, run, run_json
from confluent_kafka import Consumer

from penstock.testing import Server


def test_a_group_goes_on_where_it_stopped(server: Server, topic: str, group: str) -> None:
    run(server, "publish", topic, given="".join(f"{number}\n" for number in range(10)))
    assert run(server, "subscribe", topic, "-g", group, "-n", "4", "--raw") == "0\n1\n2\n3\n"
    assert run(server, "subscribe", topic, "-g", group, "-e", "--raw").splitlines() == ["4", "5", "6", "7", "8", "9"]
    assert run(server, "subscribe", topic, "-g", group, "-e", "--raw") == ""
    described = run_json(server, "group", "describe", group)
    expected = {"topic": topic, "partition": 0, "committed": 10, "end": 10, "lag": 0, "member": None}
    assert described["offsets"] == [expected]
    assert described["state"] == "Empty" and described["members"] == []


def test_members_are_shown_and_keep_their_group(server: Server, topic: str, group: str) -> None:
    run(server, "topic", "create", topic, "-p", "4")
    run(server, "publish", topic, "-p", "1", given="a\nb\n")
    run(server, "group", "reset", group, "--topic", topic, "-p", "1", "--to", "1", "--yes")
    member = Consumer({"bootstrap.servers": server.kafka, "group.id": group, "client.id": "reader"})
    try:
        member.subscribe([topic])

        def joined() -> Any:
            member.poll(0.1)
            described = run_json(server, "group", "describe", group)
            return described if described["state"] == "Stable" else None

        described = eventually(joined)
        (shown,) = described["members"]
        assert (shown["client_id"], shown["host"]) == ("reader", "127.0.0.1")
        assert shown["assignment"] == {topic: [0, 1, 2, 3]}
        assert described["protocol"] == "range"
        assert {row["member"] for row in described["offsets"]} == {shown["member_id"]}
        assert [row["end"] for row in described["offsets"]] == [0, 2, 0, 0]
        table = run(server, "group", "describe", group)
        assert re.search(rf"reader +127.0.0.1 +{topic} 0, 1, 2, 3 *$", table, re.MULTILINE)
        assert "has 1 member;" in run(server, "group", "reset", group, "--to", "end", "-t", topic, "--yes", code=1)
        assert "has 1 member;" in run(server, "group", "delete", group, "--yes", code=1)
    finally:
        member.close()
    assert run_json(server, "group", "describe", group)["state"] == "Empty"


def test_a_group_is_reset_shown_and_deleted(server: Server, topic: str, group: str) -> None:
    run(server, "publish", topic, given="".join(f"{number}\n" for number in range(10)))
    run(server, "subscribe", topic, "-g", group, "-e", "--raw")

    def committed() -> int:
        return int(run_json(server, "group", "describe", group)["offsets"][0]["committed"])

    dry = run_json(server, "group", "reset", group, "--to", "beginning", "--dry-run")
    assert dry["offsets"] == [{"topic": topic, "partition": 0, "before": 10, "after": 0}] and not dry["applied"]
    assert committed() == 10
    assert "add --yes" in run(server, "group", "reset", group, "--to", "beginning", code=1)
    assert committed() == 10
    shown = run(server, "group", "reset", group, "--to", "beginning", "--yes")
    assert "Before" in shown and "goes on from there" in shown
    assert committed() == 0
    for position, offset in (("7", 7), ("-2", 8), ("end", 10), ("1h", 0)):
        run(server, "group", "reset", group, "--topic", topic, "--to", position, "--yes")
        assert committed() == offset
    run(server, "group", "reset", group, "--shift", "3", "--yes")
    run(server, "group", "reset", group, "--shift", "-1", "--yes")
    assert committed() == 2
    assert run(server, "subscribe", topic, "-g", group, "-n", "1", "--raw") == "2\n"

    assert {"group": group, "state": "Empty", "protocol_type": ""} in run_json(server, "group", "list")
    assert re.search(rf"^ *{group} +Empty +- *$", run(server, "group", "list"), re.MULTILINE)
    assert f"{group}   Empty   no protocol   total lag 7" in run(server, "group", "describe", group)
    assert run(server, "group", "delete", group, "--yes") == f"deleted {group}\n"
    assert group not in run(server, "group", "list")


def test_a_group_can_be_given_a_place_before_it_exists(server: Server, topic: str, group: str) -> None:
    run(server, "publish", topic, given="a\nb\nc\n")
    assert "--topic" in run(server, "group", "reset", group, "--to", "end", "--yes", code=1)
    run(server, "group", "reset", group, "--topic", topic, "--to", "2", "--yes")
    assert run(server, "subscribe", topic, "-g", group, "-e", "--raw") == "c\n"


def test_only_the_chosen_partitions_are_set(server: Server, topic: str, group: str) -> None:
    run(server, "topic", "create", topic, "-p", "3")
    told = run_json(server, "group", "reset", group, "-t", topic, "-p", "2", "--to", "end", "--yes")
    assert told["offsets"] == [{"topic": topic, "partition": 2, "before": None, "after": 0}]
    assert "there is no partition 3" in run(
        server, "group", "reset", group, "-t", topic, "-p", "3", "--to", "end", "--yes", code=1
    )
    assert "has no committed offset to move from" in run(
        server, "group", "reset", group, "-t", topic, "--shift", "1", "--yes", code=1
    )


def test_a_group_that_is_not_there_is_named_with_what_to_do(server: Server, group: str) -> None:
    for arguments in (["describe", group], ["delete", group, "--yes"]):
        said = run(server, "group", *arguments, code=1)
        assert f"there is no group '{group}'" in said
        assert "penstock group list" in said
