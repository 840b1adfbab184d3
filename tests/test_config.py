"""Settings: each source, who wins, and what a person is told when something is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.config import (
    ConfigError,
    Listen,
    Settings,
    Storage,
    UsageError,
    load,
    markdown,
    parse_flags,
    table,
    text_of,
)

ROOT = Path(__file__).resolve().parents[1]


def write(directory: Path, name: str, text: str) -> str:
    path = directory / name
    path.write_text(text)
    return str(path)


def complaint(**flags: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load({name: [text] for name, text in flags.items()}, {})
    return str(caught.value)


# -- sources ------------------------------------------------------------------------------------------------


def test_nothing_given_means_the_defaults() -> None:
    loaded = load({}, {})
    assert loaded.settings == Settings()
    assert loaded.settings.kafka == Listen("127.0.0.1", 9092)
    assert loaded.places == {}
    assert loaded.warnings == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("penstock.toml", 'kafka = "0.0.0.0:19092"\nmax_topics = 7\nauto_create_topics = false\n'),
        ("config.json", '{"kafka": "0.0.0.0:19092", "max_topics": 7, "auto_create_topics": false}'),
        ("penstock.yaml", "kafka: 0.0.0.0:19092\nmax_topics: 7\nauto_create_topics: false\n"),
        ("penstock.yml", "kafka: '0.0.0.0:19092'\nmax_topics: '7'\nauto_create_topics: no\n"),
    ],
)
def test_a_file_may_be_toml_json_or_yaml(tmp_path: Path, name: str, text: str) -> None:
    settings = load(file=write(tmp_path, name, text), environment={}).settings
    assert (settings.kafka, settings.max_topics, settings.auto_create_topics) == (Listen("0.0.0.0", 19092), 7, False)


def test_an_empty_file_is_no_error(tmp_path: Path) -> None:
    for name, text in (("a.toml", ""), ("a.yaml", "# nothing\n"), ("a.json", "{}")):
        assert load(file=write(tmp_path, name, text), environment={}).settings == Settings()


def test_flag_wins_over_environment_wins_over_file(tmp_path: Path) -> None:
    file = write(tmp_path, "p.toml", "max_topics = 1\nmax_partitions = 1\nnode_id = 1\n")
    environment = {"PENSTOCK_MAX_TOPICS": "2", "PENSTOCK_MAX_PARTITIONS": "2"}
    loaded = load({"max_topics": ["3"]}, environment, file)
    settings = loaded.settings
    assert (settings.max_topics, settings.max_partitions, settings.node_id) == (3, 2, 1)
    assert loaded.places["max_topics"] == "flag --max-topics"
    assert loaded.places["max_partitions"] == "environment variable PENSTOCK_MAX_PARTITIONS"
    assert loaded.places["node_id"] == f"{file}:3"


def test_the_file_may_be_named_by_the_environment_and_a_flag_wins(tmp_path: Path) -> None:
    one, two = write(tmp_path, "1.toml", "node_id = 1"), write(tmp_path, "2.toml", "node_id = 2")
    assert load({}, {"PENSTOCK_CONFIG": one}).settings.node_id == 1
    assert load({}, {"PENSTOCK_CONFIG": one}, two).settings.node_id == 2


def test_every_setting_can_be_given_by_each_source(tmp_path: Path) -> None:
    samples = {
        "data": "./elsewhere",
        "storage": "memory",
        "durability": "os",
        "topic_defaults": "retention.ms=5",
        "auto_create_topics": "false",
        "kafka": "[::1]:0",
        "kafka_advertised": "broker.example:9092",
        "cluster_id": "abc",
        "log_level": "debug",
        "log_format": "json",
    }
    for name, setting in table().items():
        text = samples.get(name) or text_of(setting.default)
        expected = setting.kind.parse(text)
        flags, _ = parse_flags([setting.flag, text])
        file = write(tmp_path, "each.json", json.dumps({name: text}))
        for loaded in (load(flags, {}), load({}, {setting.variable: text}), load({}, {}, file)):
            assert getattr(loaded.settings, name) == expected, name
            assert name in loaded.places


# -- flags --------------------------------------------------------------------------------------------------


def test_flags_take_their_value_after_a_space_or_an_equals_sign() -> None:
    assert parse_flags(["--kafka", "off", "--data=/x", "-c", "a.toml"]) == (
        {"kafka": ["off"], "data": ["/x"]},
        "a.toml",
    )
    assert parse_flags(["--config=b.toml", "--node-id", "1", "--node-id", "2"]) == ({"node_id": ["2"]}, "b.toml")


def test_a_switch_stands_alone_negated_or_with_a_value() -> None:
    for arguments, text in (
        (["--auto-create-topics"], "true"),
        (["--no-auto-create-topics"], "false"),
        (["--auto-create-topics=no"], "no"),
        (["--auto-create-topics", "off"], "off"),
    ):
        assert parse_flags(arguments)[0] == {"auto_create_topics": [text]}
    assert parse_flags(["--auto-create-topics", "--kafka", "off"])[0] == {
        "auto_create_topics": ["true"],
        "kafka": ["off"],
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kafak", "x"], ["--kafak", "did you mean '--kafka'"]),
        (["--no-kafka"], ["--no-kafka"]),
        (["--kafka"], ["--kafka needs a value"]),
        (["--kafka", "--data", "x"], ["--kafka needs a value"]),
        (["orders"], ["unexpected argument 'orders'"]),
        (["--config"], ["--config needs a value"]),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(arguments: list[str], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_flags(arguments)
    assert all(word in str(caught.value) for word in words)


# -- complaints ---------------------------------------------------------------------------------------------


def test_an_unknown_key_names_its_line_and_the_likely_one(tmp_path: Path) -> None:
    file = write(tmp_path, "p.toml", '# mine\n\nkafak = "127.0.0.1:1"\n')
    with pytest.raises(ConfigError) as caught:
        load({}, {}, file)
    assert str(caught.value) == f"unknown setting 'kafak' (in {file}:3): did you mean 'kafka'?"


def test_an_unknown_table_is_an_unknown_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'sockets' .*:1.*penstock settings"):
        load({}, {}, write(tmp_path, "p.toml", "[sockets]\nkafka = 1\n"))


def test_a_bad_value_names_key_value_place_and_what_is_allowed(tmp_path: Path) -> None:
    file = write(tmp_path, "p.json", '{\n "durability": "maybe"\n}')
    with pytest.raises(ConfigError) as caught:
        load({}, {}, file)
    assert str(caught.value) == (f"durability = 'maybe' (in {file}:2) is not allowed: allowed is sync, interval or os")
    with pytest.raises(ConfigError, match=r"max_topics = 'many' \(environment variable PENSTOCK_MAX_TOPICS\)"):
        load({}, {"PENSTOCK_MAX_TOPICS": "many"})
    assert complaint(max_topics="0").startswith(
        "max_topics = '0' (flag --max-topics) is not allowed: allowed is a number"
    )


def test_an_unknown_variable_is_only_a_warning() -> None:
    loaded = load({}, {"PENSTOCK_KAFAK": "x", "PENSTOCK_SERVER": "y", "PENSTOCK_PURE": "1", "HOME": "/"})
    assert loaded.settings == Settings()
    assert loaded.warnings == ["environment variable PENSTOCK_KAFAK is ignored: did you mean 'PENSTOCK_KAFKA'?"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("p.toml", "kafka = ", "not well-formed TOML"),
        ("p.json", "{", "not well-formed JSON"),
        ("p.yaml", "a: [", "not well-formed YAML"),
        ("p.json", "[1]", "does not hold a table"),
        ("p.ini", "", "must end in .toml, .json, .yaml or .yml"),
        ("p.toml", "max_topics = 1.5", "max_topics = 1.5"),
        ("p.toml", "max_topics = true", "max_topics = True"),
        ("p.yaml", "data: [a]", "allowed is a path"),
        ("p.toml", "topic_defaults = 3", "allowed is a table"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_in_words(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({}, {}, write(tmp_path, name, text))
    assert words in str(caught.value) and name in str(caught.value)


def test_a_file_that_is_not_there_or_not_text_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the configuration file .*nope\.toml: no such file"):
        load({}, {}, str(tmp_path / "nope.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        load({}, {}, str(tmp_path / "binary.toml"))


# -- kinds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9092", Listen("127.0.0.1", 9092)),
        ("localhost:0", Listen("localhost", 0)),
        ("[::1]:65535", Listen("::1", 65535)),
        (":9092", Listen("0.0.0.0", 9092)),
        (" 0.0.0.0:1 ", Listen("0.0.0.0", 1)),
        ("off", None),
        ("OFF", None),
    ],
)
def test_an_address_is_host_and_port_or_off(text: str, address: Listen | None) -> None:
    assert load({"kafka": [text]}, {}).settings.kafka == address


@pytest.mark.parametrize(
    "text",
    ["here", "1:2:3", "::1:9092", "[::1]", "[127.0.0.1]:1", "h:65536", "h:-1", "h:", "a b:1", "h:٣", "", "[::1:1"],
)
def test_anything_else_is_no_address(text: str) -> None:
    assert f"kafka = {text!r} (flag --kafka) is not allowed: allowed is host:port" in complaint(kafka=text)


def test_yaml_reads_off_as_false_and_means_off(tmp_path: Path) -> None:
    assert load({}, {}, write(tmp_path, "p.yaml", "kafka: off\n")).settings.kafka is None


def test_an_address_is_written_as_it_is_read() -> None:
    for text in ("127.0.0.1:9092", "[::1]:9092", "broker.example:1"):
        assert str(Listen.parse(text)) == text


def test_an_advertised_address_may_lack_its_port_but_not_name_every_interface() -> None:
    assert load({"kafka_advertised": ["broker.example"]}, {}).settings.kafka_advertised == Listen("broker.example", 0)
    assert load({"kafka_advertised": ["[::1]"]}, {}).settings.kafka_advertised == Listen("::1", 0)
    assert "which 0.0.0.0 is not" in complaint(kafka_advertised="0.0.0.0:9092")


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("2048", 2048), ("64MiB", 64 << 20), ("1GB", 10**9), ("1.5 kib", 1536), ("2_048", 2048), ("4096b", 4096)],
)
def test_sizes_have_units(text: str, size_bytes: int) -> None:
    assert load({"max_request_bytes": [text]}, {}).settings.max_request_bytes == size_bytes


@pytest.mark.parametrize("text", ["10 parsecs", "-5", "1.0001KiB", "MiB", "1023", "3GiB"])
def test_a_size_that_is_none_or_out_of_bounds_is_refused(text: str) -> None:
    assert "allowed is a number of bytes from 1024 to 2147483647, or a size such as" in complaint(
        max_request_bytes=text
    )


def test_times_are_in_the_unit_of_the_name_or_in_their_own() -> None:
    def settled(**flags: str) -> Settings:
        return load({name: [text] for name, text in flags.items()}, {}).settings

    assert settled(producer_id_expiration_ms="7d").producer_id_expiration_ms == 7 * 86_400_000
    assert settled(producer_id_expiration_ms="250").producer_id_expiration_ms == 250
    assert settled(drain_timeout_s="5m").drain_timeout_s == 300
    assert settled(drain_timeout_s="5").drain_timeout_s == 5
    assert settled(offsets_retention_minutes="7d").offsets_retention_minutes == 10_080
    assert "not a whole number of them" in complaint(drain_timeout_s="500ms")
    assert "there is no unit 'y'" in complaint(drain_timeout_s="1y")


@pytest.mark.parametrize(
    ("text", "storage"),
    [
        ("disk", Storage("disk")),
        ("file:", Storage("disk")),
        ("memory", Storage("memory")),
        ("memory:", Storage("memory", persistent=False)),
        ("file:/srv/penstock", Storage("disk", path="/srv/penstock")),
        ("file:///srv/penstock", Storage("disk", path="/srv/penstock")),
    ],
)
def test_storage_is_a_word_or_a_url(text: str, storage: Storage) -> None:
    settings = load({"storage": [text]}, {}).settings
    assert settings.storage == storage
    assert settings.data == (storage.path or "./penstock-data")


def test_two_data_directories_are_one_too_many() -> None:
    assert "name two data directories" in complaint(storage="file:/a", data="/b")
    assert load({"storage": ["file:/a"], "data": ["/a"]}, {}).settings.data == "/a"


def test_session_time_outs_must_leave_room_between_them() -> None:
    assert "is more than group_max_session_timeout_ms" in complaint(group_min_session_timeout_ms="1h")


# -- topic defaults -----------------------------------------------------------------------------------------


def test_topic_defaults_are_merged_name_by_name(tmp_path: Path) -> None:
    file = write(
        tmp_path, "p.toml", '[topic_defaults]\n"retention.ms" = 1000\ncleanup.policy = ["compact", "delete"]\n'
    )
    environment = {"PENSTOCK_TOPIC_DEFAULTS": "retention.ms=2000,segment.bytes=4096"}
    flags, _ = parse_flags(["--topic-defaults", "segment.bytes=8192", "--topic-defaults=segment.ms=1"])
    assert load(flags, environment, file).settings.topic_defaults == {
        "retention.ms": "2000",
        "cleanup.policy": "compact,delete",
        "segment.bytes": "8192",
        "segment.ms": "1",
    }


def test_a_comma_in_a_topic_setting_is_part_of_its_value() -> None:
    settings = load({"topic_defaults": ["cleanup.policy=compact,delete,retention.ms=5"]}, {}).settings
    assert settings.topic_defaults == {"cleanup.policy": "compact,delete", "retention.ms": "5"}
    assert load({"topic_defaults": ['{"a.b": true}']}, {}).settings.topic_defaults == {"a.b": "true"}
    assert "allowed is a table" in complaint(topic_defaults="compact")


def test_topic_defaults_are_checked_by_whoever_knows_them() -> None:
    def check(name: str, value: str) -> None:
        if name != "retention.ms":
            raise ValueError("there is no such topic setting")

    load({"topic_defaults": ["retention.ms=5"]}, {}, check_topic_setting=check)
    with pytest.raises(ConfigError) as caught:
        load({"topic_defaults": ["retention.sm=5"]}, {}, check_topic_setting=check)
    assert str(caught.value) == (
        "topic_defaults: retention.sm = '5' (flag --topic-defaults) is not allowed: there is no such topic setting"
    )


# -- what derives from the table ----------------------------------------------------------------------------


def test_every_setting_is_documented_and_its_default_is_allowed() -> None:
    for name, setting in table().items():
        assert setting.doc.endswith("."), name
        assert setting.kind.allowed and setting.kind.word, name
        if setting.default is not None and setting.default != {}:
            assert setting.kind.parse(text_of(setting.default)) == setting.default, name


def test_the_reference_page_is_fresh() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    assert page == markdown(), "make it anew: penstock settings --markdown > docs/settings.md"


def test_the_quick_path_imports_nothing_slow() -> None:
    slow = {"typer", "rich", "yaml", "tomllib", "click"}
    code = f"import sys, penstock.cli.serve; print(*sorted({slow} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert result.stdout.strip() == ""
