"""`penstock topic` against a real server process."""

import re

from cli_command import eventually, run, run_json

from penstock.testing import Server


def test_a_topic_is_created_described_altered_and_deleted(server: Server, topic: str) -> None:
    assert run(server, "topic", "create", topic, "-p", "3", "--set", "retention.ms=60000") == f"created {topic}\n"
    described = run_json(server, "topic", "describe", topic)
    assert [one["partition"] for one in described["partitions"]] == [0, 1, 2]
    assert described["settings"]["retention.ms"] == {"value": "60000", "source": "topic"}

    run(server, "topic", "alter", topic, "--set", "cleanup.policy=compact", "--unset", "retention.ms", "-p", "5")
    described = eventually(
        lambda: (one := run_json(server, "topic", "describe", topic))["settings"].keys() == {"cleanup.policy"} and one
    )
    assert len(described["partitions"]) == 5

    assert topic in run(server, "topic", "list")
    assert {"topic": topic, "partitions": 5, "records": 0} in run_json(server, "topic", "list")
    assert run(server, "topic", "delete", topic, "--yes") == f"deleted {topic}\n"
    eventually(lambda: topic not in run(server, "topic", "list"))


def test_creating_a_topic_twice_is_an_error_unless_that_is_fine(server: Server, topic: str) -> None:
    run(server, "topic", "create", topic)
    said = run(server, "topic", "create", topic, code=1)
    assert f"topic '{topic}' exists already" in said and "penstock topic alter" in said
    assert run_json(server, "topic", "create", topic, "--if-not-exists") == [{"topic": topic, "created": False}]


def test_what_does_not_exist_is_named_with_what_to_do(server: Server, topic: str) -> None:
    for arguments in (["topic", "describe"], ["topic", "alter", "-p", "2"]):
        said = run(server, *arguments, topic, code=1)
        assert f"there is no topic '{topic}'" in said and "penstock topic list" in said
    assert "nothing was deleted" in run(server, "topic", "delete", topic, "--yes", code=1)
    assert run(server, "topic", "delete", topic, "--if-exists") == ""


def test_an_unsupported_topic_setting_is_refused(server: Server, topic: str) -> None:
    assert "retention.sm" in run(server, "topic", "create", topic, "--set", "retention.sm=1", code=1)
    run(server, "topic", "create", topic)
    assert "retention.ms" in run(server, "topic", "alter", topic, "--set", "retention.ms=soon", code=1)


def test_a_topic_cannot_shrink(server: Server, topic: str) -> None:
    run(server, "topic", "create", topic, "-p", "3")
    assert "3 partitions" in run(server, "topic", "alter", topic, "-p", "2", code=1)


def test_nobody_to_ask_means_nothing_is_deleted(server: Server, topic: str) -> None:
    run(server, "topic", "create", topic)
    assert "add --yes" in run(server, "topic", "delete", topic, code=1)
    assert topic in run(server, "topic", "list")


def test_a_table_is_made_for_people(server: Server, topic: str) -> None:
    run(server, "topic", "create", topic, "-p", "2")
    run(server, "publish", topic, "-p", "1", given="".join(f"{number}\n" for number in range(1234)))
    assert re.search(
        r"Partition +Leader +Replicas +In sync +Start +End", described := run(server, "topic", "describe", topic)
    )
    assert re.search(r"^ +1 .* 0 +1,234 *$", described, re.MULTILINE)


def test_settings_are_shown_with_who_set_them(server: Server, topic: str) -> None:
    run(server, "topic", "create", topic)
    assert "all settings are at their defaults; --all shows them" in run(server, "topic", "describe", topic)
    every = run_json(server, "topic", "describe", topic, "--all")["settings"]
    assert every["cleanup.policy"] == {"value": "delete", "source": "default"}
    assert re.search(
        r"^ *cleanup.policy +delete +default *$", run(server, "topic", "describe", topic, "-a"), re.MULTILINE
    )


def test_the_servers_own_topics_are_shown_when_asked_for(server: Server) -> None:
    assert "__penstock_groups" not in run(server, "topic", "list")
    assert "__penstock_groups" in run(server, "topic", "list", "--internal")


def test_several_topics_are_made_and_deleted_at_once(server: Server, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(3)]
    made = run_json(server, "topic", "create", *names)
    assert made == [{"topic": name, "created": True} for name in names]
    gone = topic + "-gone"
    assert "nothing was deleted" in run(server, "topic", "delete", *names, gone, "--yes", code=1)
    deleted = run_json(server, "topic", "delete", *names, gone, "--yes", "--if-exists")
    assert deleted == {"deleted": names, "missing": [gone]}
