"""The session suits topics, and what it stands on is named when it is missing."""

import stat
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.pipeline import session
from penstock.pipeline.errors import JavaMissing, SparkMissing
from penstock.pipeline.session import check_java, spark_session


def fake_java(home: Path, says: str) -> None:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)


def test_the_session_answers(spark: SparkSession) -> None:
    assert [row.id for row in spark.range(3).collect()] == [0, 1, 2]
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_a_setting_that_is_given_wins(spark: SparkSession) -> None:
    again = spark_session("other", "local[2]", spark__sql__session__timeZone="Europe/Berlin")
    try:
        assert again.conf.get("spark.sql.session.timeZone") == "Europe/Berlin"
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        spark.conf.set("spark.sql.shuffle.partitions", "2")


def test_no_java_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match=r"no java on the PATH.*openjdk-17"):
        check_java()


def test_a_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match=rf"JAVA_HOME is {tmp_path}.*cannot be run.*openjdk-17"):
        check_java()


@pytest.mark.parametrize("says", ['java version "1.8.0_392"', 'openjdk version "11.0.2" 2019-01-15'])
def test_an_old_java_is_refused(says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match=r"is Java (8|11)\. Spark needs Java 17"):
        check_java()


def test_a_java_that_says_nothing_of_use_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path, "hello")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="does not tell its version"):
        check_java()


def test_no_pyspark_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(SparkMissing, match=r"pip install 'penstock\[spark\]'"):
        spark_session("never")


def test_an_old_pyspark_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "3.5.1")
    with pytest.raises(SparkMissing, match=r"pyspark 3\.5\.1 is installed, 4\.3 or newer"):
        spark_session("never")


def test_local_masters_get_as_many_shuffle_partitions_as_cores() -> None:
    assert session._settings("local[3]", False, None, None)["spark.sql.shuffle.partitions"] == "3"
    assert session._settings("local", False, None, None)["spark.sql.shuffle.partitions"] == "1"
    assert "spark.sql.shuffle.partitions" not in session._settings("spark://host:7077", False, None, None)


def test_a_packed_environment_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SparkMissing, match=r"no packed environment .*env\.tar\.gz"):
        session._settings("spark://host:7077", False, None, tmp_path / "env.tar.gz")
