"""Each table format under the same laws: a batch's rows once, whatever is repeated, and nothing that did not count."""

import datetime
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from penstock.model.errors import StepForgotten, StepMismatch
from penstock.pipeline.errors import InvalidOption, SchemaMismatch
from penstock.pipeline.tables import FORMATS, DataFile, Mark, Table, open_table
from penstock.pipeline.tables import table as nouns
from penstock.pipeline.tables.writer import FileWriter

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("date", pa.date32())])
DAYS = [datetime.date(2026, 1, 31), datetime.date(2026, 2, 1), None]

formats = pytest.mark.parametrize("kind", FORMATS)


def rows(ids: Sequence[int], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    cells = [{"id": n, "name": f"name {n}", "date": DAYS[n % 3]} for n in ids]
    return pa.RecordBatch.from_pylist(cells, schema=schema)


def stage(table: Table, batch: int, ids: Sequence[int], by: Sequence[str] = (), name: str = "a") -> list[DataFile]:
    """What one task does."""
    writer = FileWriter(
        table.location,
        table.folder(name, batch),
        rows([]).schema,
        by,
        keep_partition_columns=table.keeps_partition_columns,
    )
    writer.add(rows(ids))
    return writer.close()


def ids_of(table: Table) -> list[int]:
    return sorted(table.read(["id"]).column("id").to_pylist())


def place(tmp_path: Path) -> str:
    return str(tmp_path / "warehouse" / "sales" / "orders")


@formats
@pytest.mark.parametrize("by", [(), ("date",)], ids=["whole", "by-date"])
def test_batches_are_rows_once(tmp_path: Path, kind: str, by: tuple[str, ...]) -> None:
    table = open_table(kind, place(tmp_path))
    assert table.schema() is None
    assert table.last_batch("a") is None
    assert table.prepare(SCHEMA, by).names == SCHEMA.names
    first = Mark("a", 0, "0 to 9")
    assert table.publish(stage(table, 0, range(5), by) + stage(table, 0, range(5, 10), by), first)
    assert table.publish(stage(table, 1, range(10, 20), by), Mark("a", 1, "10 to 19"))
    stage(table, 2, range(100, 110), by)  # an attempt that nobody counts
    assert not table.publish(stage(table, 0, range(10), by), first)
    assert table.is_published(first)
    assert not table.is_published(Mark("a", 2, "new"))
    assert ids_of(table) == list(range(20))
    assert table.last_batch("a") == 1
    row = table.read().filter(pa.compute.field("id") == 4).to_pylist()[0]
    assert row == {"id": 4, "name": "name 4", "date": DAYS[1]}


@formats
def test_number_that_is_used_again_for_other_rows_stops_loudly(tmp_path: Path, kind: str) -> None:
    table = open_table(kind, place(tmp_path))
    table.prepare(SCHEMA, ())
    table.publish(stage(table, 0, [1]), Mark("a", 0, "1"))
    with pytest.raises(
        StepMismatch, match=r"batch 0 of application 'a'.*of 1; now it would be of 2\..*startingOffsets"
    ):
        table.publish(stage(table, 0, [2]), Mark("a", 0, "2"))
    assert ids_of(table) == [1]
    assert table.publish(stage(table, 0, [2], name="b"), Mark("b", 0, "2")), "others have numbers of their own"
    assert ids_of(table) == [1, 2]


@formats
def test_batch_older_than_what_is_remembered_stops_loudly(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules[type(open_table(kind, place(tmp_path))).__module__]
    name = "MARKS_IN_PROPERTY" if kind == "iceberg" else "MARKS_REMEMBERED"
    monkeypatch.setattr(module, name, 2)
    table = open_table(kind, place(tmp_path))
    table.prepare(SCHEMA, ())
    for batch in range(4):
        assert table.publish(stage(table, batch, [batch]), Mark("a", batch, f"{batch}"))
    assert not table.publish([], Mark("a", 3, "3"))
    assert not table.publish([], Mark("a", 2, "2"))
    with pytest.raises(StepForgotten, match="no longer knows of what"):
        table.publish([], Mark("a", 0, "0"))
    assert ids_of(table) == [0, 1, 2, 3]


@formats
def test_columns_are_added_and_never_changed(tmp_path: Path, kind: str) -> None:
    table = open_table(kind, place(tmp_path))
    table.prepare(SCHEMA, ())
    table.publish(stage(table, 0, [1]), Mark("a", 0, "0"))
    grown = pa.schema([("id", pa.int64()), ("price", pa.float64()), ("tags", pa.list_(pa.string()))])
    merged = table.prepare(grown, ())
    assert merged.names == ["id", "name", "date", "price", "tags"]
    assert nouns.plain_schema(table.schema()) == nouns.plain_schema(merged)  # type: ignore[arg-type]
    writer = FileWriter(table.location, table.folder("a", 1), merged, keep_partition_columns=True)
    writer.add(pa.RecordBatch.from_pylist([{"id": 2, "price": 1.5, "tags": ["x"]}], schema=merged))
    table.publish(writer.close(), Mark("a", 1, "1"))
    found = sorted(table.read().to_pylist(), key=lambda row: row["id"])
    assert found[0]["price"] is None
    assert found[0]["name"] == "name 1"
    assert found[1] == {"id": 2, "name": None, "date": None, "price": 1.5, "tags": ["x"]}
    with pytest.raises(SchemaMismatch, match=r"column 'price' .* is double, and now it would be string"):
        table.prepare(pa.schema([("price", pa.string())]), ())
    with pytest.raises(SchemaMismatch, match="is partitioned by"):
        table.prepare(SCHEMA, ("date",))


@formats
@pytest.mark.parametrize("by", [(), ("date",)], ids=["whole", "by-date"])
def test_small_files_are_put_together(tmp_path: Path, kind: str, by: tuple[str, ...]) -> None:
    table = open_table(kind, place(tmp_path))
    table.prepare(SCHEMA, by)
    for batch in range(6):
        table.publish(stage(table, batch, range(batch * 9, batch * 9 + 9), by), Mark("a", batch, str(batch)))
    before = table.read().sort_by("id")
    done = table.compact(below_bytes=1 << 20, target_bytes=1 << 20)
    assert (done.removed, done.added) == ((18, 3) if by else (6, 1))
    assert table.read().sort_by("id").to_pylist() == before.to_pylist()
    assert table.compact(below_bytes=1 << 20, target_bytes=1 << 20).removed == 0
    assert not table.publish([], Mark("a", 5, "5")), "what was published is still known"
    assert table.publish(stage(table, 6, [999], by), Mark("a", 6, "6"))
    assert len(ids_of(table)) == 55


def test_any_reader_reads_a_folder_of_parquet(tmp_path: Path) -> None:
    table = open_table("parquet", place(tmp_path))
    table.prepare(SCHEMA, ("date",))
    table.publish(stage(table, 0, range(9), ("date",)), Mark("a", 0, "0"))
    stage(table, 1, range(100), ("date",))
    found = ds.dataset(place(tmp_path), format="parquet", partitioning="hive").to_table()
    assert sorted(found.column("id").to_pylist()) == list(range(9))
    assert set(found.column("date").to_pylist()) == {"2026-01-31", "2026-02-01", None}


def test_many_values_of_a_partition_column_keep_few_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.tables.writer.OPEN_FILES", 4)
    writer = FileWriter(str(tmp_path), "x", SCHEMA, ["name"], keep_partition_columns=True)
    for start in range(0, 30, 10):
        writer.add(rows(range(start, start + 10)))
        writer.add(rows(range(start, start + 10)))
        assert len(writer._open) <= 4
    files = writer.close()
    assert sum(file.rows for file in files) == 60
    assert {file.partition["name"] for file in files} == {f"name {n}" for n in range(30)}


def test_large_files_are_followed_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.tables.writer.ROW_GROUP_ROWS", 100)
    writer = FileWriter(str(tmp_path), "x", SCHEMA, keep_partition_columns=True, target_bytes=3000)
    for start in range(0, 2000, 50):
        writer.add(rows(range(start, start + 50)))
    files = writer.close()
    assert len(files) > 3
    assert sum(file.rows for file in files) == 2000


def test_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    writer = FileWriter(str(tmp_path), "x", SCHEMA, keep_partition_columns=True)
    writer.add(rows([1]))
    writer.abandon()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_place_must_be_one_that_the_format_can_use(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="no table format 'orc'"):
        open_table("orc", str(tmp_path))
    with pytest.raises(InvalidOption, match="s3://bucket/t"):
        open_table("parquet", "s3://bucket/t")
    with pytest.raises(SchemaMismatch, match="there is no column 'country'"):
        open_table("parquet", place(tmp_path)).prepare(SCHEMA, ("country",))


# -- killed between any two steps -------------------------------------------------------------------------------

CHILD = """
import os, signal, sys
sys.path.insert(0, {here!r})
import test_table_formats as story
from penstock.pipeline.tables import Mark, open_table

table = open_table({format!r}, {place!r})
table.prepare(story.SCHEMA, ("date",))
files = story.stage(table, 1, range(10, 20), ("date",))
left = {kill_at}

def dying(call):
    def wrapped(*arguments, **named):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return call(*arguments, **named)
    return wrapped

for name in ("rename", "replace", "unlink", "fsync", "mkdir"):
    setattr(os, name, dying(getattr(os, name)))
if {compact}:
    table.compact(1 << 20, 1 << 20)
else:
    table.publish(files, Mark("a", 1, "10 to 19"))
print("survived")
"""


def die_at(kind: str, target: str, kill_at: int, *, compact: bool = False) -> bool:
    """Publish batch 1, or compact, in a process that is killed before its n-th change of a file. True: it was."""
    code = textwrap.dedent(CHILD).format(
        here=str(Path(__file__).parent), format=kind, place=target, kill_at=kill_at, compact=compact
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == -signal.SIGKILL:
        return True
    assert done.returncode == 0, done.stderr
    assert "survived" in done.stdout
    return False


@pytest.mark.timeout(300)
def test_parquet_batch_survives_a_kill_before_every_step(tmp_path: Path) -> None:
    for kill_at in range(200):
        target = str(tmp_path / str(kill_at))
        table = open_table("parquet", target)
        table.prepare(SCHEMA, ("date",))
        table.publish(stage(table, 0, range(10), ("date",)), Mark("a", 0, "0 to 9"))
        killed = die_at("parquet", target, kill_at)
        seen = sorted(ds.dataset(target, format="parquet", partitioning="hive").to_table().column("id").to_pylist())
        assert len(seen) == len(set(seen)), "a reader that knows nothing sees no row twice"
        table = open_table("parquet", target)
        table.prepare(SCHEMA, ("date",))
        table.publish(stage(table, 1, range(10, 20), ("date",)), Mark("a", 1, "10 to 19"))
        assert ids_of(table) == list(range(20)), f"killed before change {kill_at}"
        assert not list(Path(target, "_staged").rglob("*.parquet"))
        if not killed:
            break
    assert not killed, "the last one went through"
    assert kill_at > 5, "and there were several to be killed before"


@pytest.mark.timeout(300)
def test_parquet_compaction_survives_a_kill_before_every_step(tmp_path: Path) -> None:
    for kill_at in range(0, 200, 3):
        target = str(tmp_path / str(kill_at))
        table = open_table("parquet", target)
        table.prepare(SCHEMA, ("date",))
        for batch in range(-3, 1):
            table.publish(stage(table, batch + 3, [batch + 3], ("date",)), Mark("a", batch + 3, str(batch)))
        killed = die_at("parquet", target, kill_at, compact=True)
        table = open_table("parquet", target)
        table.prepare(SCHEMA, ("date",))
        assert ids_of(table) == [0, 1, 2, 3], f"killed before change {kill_at}"
        if not killed:
            break
    assert not killed


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_batch_survives_a_kill_before_and_after_the_commit(tmp_path: Path, kind: str) -> None:
    for kill_at in (0, 1, 2, 1000):
        target = str(tmp_path / str(kill_at) / "ns" / "t")
        table = open_table(kind, target)
        table.prepare(SCHEMA, ("date",))
        table.publish(stage(table, 0, range(10), ("date",)), Mark("a", 0, "0 to 9"))
        assert die_at(kind, target, kill_at) == (kill_at != 1000)
        table = open_table(kind, target)
        table.prepare(SCHEMA, ("date",))
        table.publish(stage(table, 1, range(10, 20), ("date",)), Mark("a", 1, "10 to 19"))
        assert ids_of(table) == list(range(20))


@formats
def test_two_drivers_publish_the_same_batch_and_one_counts(tmp_path: Path, kind: str) -> None:
    target = place(tmp_path)
    table = open_table(kind, target)
    table.prepare(SCHEMA, ("date",))
    code = textwrap.dedent(
        f"""
        import os, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import test_table_formats as story
        from penstock.pipeline.tables import Mark, open_table
        table = open_table({kind!r}, {target!r})
        files = story.stage(table, 0, range(10), ("date",))
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            print(table.publish(files, Mark("a", 0, "0 to 9")))
        except Exception as error:
            print(type(error).__name__, error)
        """
    )
    drivers = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for driver in drivers:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
    for driver in drivers:
        assert driver.stdin is not None
        driver.stdin.write("go\n")
        driver.stdin.flush()
    said = [driver.communicate(timeout=60)[0].strip() for driver in drivers]
    assert said.count("True") == 1, said
    assert ids_of(table) == list(range(10))
