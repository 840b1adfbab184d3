"""Which kind of pipeline a file is, and what is said of one that is none."""

from pathlib import Path
from typing import Any

import pytest

from penstock.cli.pipeline_starter import starter
from penstock.pipeline.declared import directives, read_declaration
from penstock.pipeline.failures import explain
from penstock.pipeline.files import InvalidPipeline, Kind, Plain, load_plain, name_of, open_file
from penstock.pipeline.jobs.sql import names_in, trigger_of
from penstock.pipeline.views import TopicView, ddl

PLAIN = "def pipeline(spark, server, once=False):\n    return []\n"


def written(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("a.py", PLAIN, Kind.plain),
        ("a.py", "from shared import pipeline\n", Kind.plain),
        ("a.py", "from pyspark import pipelines as dp\n", Kind.declared),
        ("a.py", "import pyspark.pipelines\n", Kind.declared),
        ("a.py", "from pyspark.pipelines import table\n", Kind.declared),
        ("a.sql", "CREATE MATERIALIZED VIEW a AS SELECT 1", Kind.declared),
        ("spark-pipeline.yml", "name: a", Kind.declared),
    ],
)
def test_a_file_tells_what_it_is_without_being_run(tmp_path: Path, name: str, text: str, kind: Kind) -> None:
    assert open_file(written(tmp_path, name, text)).kind is kind


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.py", "print('hello')\n", "neither a function 'pipeline(spark)'"),
        ("a.py", "def pipeline(:\n", "line 1"),
        ("a.txt", "hello", "neither a .py, a .sql nor a .yml"),
    ],
)
def test_what_is_no_pipeline_is_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(InvalidPipeline, match=said.replace("(", r"\(").replace(")", r"\)")):
        open_file(written(tmp_path, name, text))


def test_a_file_that_is_not_there_can_be_made(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match=r"'penstock pipeline new nowhere\.py' writes one"):
        open_file("nowhere.py")
    with pytest.raises(InvalidPipeline, match=r"there is no spark-pipeline\.yml"):
        open_file(str(tmp_path))


def test_a_pipeline_is_named_by_its_file_or_its_directory(tmp_path: Path) -> None:
    assert open_file(written(tmp_path, "sales per day.py", PLAIN)).default_name == "sales-per-day"
    written(tmp_path, "sales/spark-pipeline.yml", "name: a")
    assert open_file(str(tmp_path / "sales")).default_name == "sales"
    assert name_of("...") == "pipeline"


class Query:
    def __init__(self, number: int) -> None:
        self.id = number

    def awaitTermination(self, timeout: Any = None) -> bool:  # noqa: N802
        return True


class Session:
    """As much of a session as a function that starts queries needs."""

    def __init__(self, *active: Query) -> None:
        self.streams = self
        self.active = active


def test_a_function_is_given_what_it_names(tmp_path: Path) -> None:
    plain = load_plain(open_file(written(tmp_path, "wants.py", PLAIN)).path, ["server", "checkpoint", "once"])
    assert list(plain.wants) == ["server", "once"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def pipeline(spark, broker): ...", "wants 'broker'; what can be had is server"),
        ("def pipeline(): ...", "its first parameter is the Spark session"),
        ("pipeline = 3", "is not a function"),
    ],
)
def test_a_function_that_wants_what_is_not_to_be_had_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = open_file(written(tmp_path, f"odd{abs(hash(text))}.py", text)).path
    with pytest.raises(InvalidPipeline, match=said):
        load_plain(path, ["server"])


def test_queries_may_be_one_several_or_forgotten() -> None:
    def run(given: object, *active: Query) -> list[int]:
        return [one.id for one in Plain(Path("a.py"), lambda spark: given, []).start(Session(*active), {})]

    assert run(Query(1)) == [1]
    assert run([Query(1), Query(2)]) == [1, 2]
    assert run(None, Query(3)) == [3]
    assert run(Query(1), Query(3)) == [1, 3]
    with pytest.raises(InvalidPipeline, match="returned a str"):
        run(["no query"])
    with pytest.raises(InvalidPipeline, match="started no streaming query"):
        run(None)


# -- declarative pipelines ----------------------------------------------------------------------------------


def test_comments_of_sql_name_topics_and_sinks() -> None:
    views, sinks = directives(
        "-- topic orders (id BIGINT, tags ARRAY<STRING>)\n"
        "--topic eu.clicks as clicks\n"
        "-- sink alerts from worst\n"
        "-- sink eu.large from large\n"
        "-- sink nothing\n"
        "-- a topic of its own\n"
        "SELECT 1 -- topic no\n"
    )
    assert views == [TopicView("orders", "orders", "id BIGINT, tags ARRAY<STRING>"), TopicView("clicks", "eu.clicks")]
    assert sinks == {"worst": "alerts", "large": "eu.large"}


def test_a_specification_names_its_files(tmp_path: Path) -> None:
    text = starter(tmp_path / "spark-pipeline.yml", False, "orders")
    file = open_file(written(tmp_path, "spark-pipeline.yml", text))
    with pytest.raises(InvalidPipeline, match="names no files that are there"):
        read_declaration(file, tmp_path)
    written(tmp_path, "transformations/a.sql", "SELECT 1")
    written(tmp_path, "transformations/more/b.py", "")
    written(tmp_path, "transformations/notes.txt", "")
    found = read_declaration(file, tmp_path)
    assert [path.name for path in found.files] == ["a.sql", "b.py"]
    assert (found.name, found.database) == ("spark-pipeline", "default")
    assert found.storage.startswith("file:///")


@pytest.mark.parametrize("text", ["name: a", "nme: a", "- a", "name: [", "libraries: 3\nname: a\nstorage: b"])
def test_a_wrong_specification_is_told_in_one_line(tmp_path: Path, text: str) -> None:
    file = open_file(written(tmp_path, "spark-pipeline.yml", text))
    with pytest.raises(InvalidPipeline, match=r"^spark-pipeline.yml: [^\n]+$"):
        read_declaration(file, tmp_path)


# -- statements ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "names"),
    [
        ("SELECT * FROM orders", ["orders"]),
        ("select 1 from `eu.orders` o join clicks on o.id = clicks.id", ["eu.orders", "clicks"]),
        ("SELECT * FROM orders, clicks WHERE 1 = 1", ["orders", "clicks"]),
        ("WITH t AS (SELECT * FROM orders) SELECT * FROM t", ["orders", "t"]),
        ("SELECT 1 -- FROM nothing\n FROM /* from here */ orders", ["orders"]),
        ("SELECT * FROM STREAM(orders)", ["orders"]),
        ("SELECT 1", []),
    ],
)
def test_a_statement_names_its_topics(statement: str, names: list[str]) -> None:
    assert names_in(statement) == names


def test_triggers_are_what_spark_calls_them() -> None:
    assert trigger_of("available-now") == {"availableNow": True}
    assert trigger_of("continuous") == {"processingTime": "0 seconds"}
    assert trigger_of("10 seconds") == {"processingTime": "10 seconds"}


def test_inferred_types_are_spark_s() -> None:
    import pyarrow as pa

    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("a`b", pa.float64()),
            ("at", pa.timestamp("s")),
            ("tags", pa.list_(pa.string())),
            ("inner", pa.struct([("ok", pa.bool_()), ("nothing", pa.null())])),
        ]
    )
    assert ddl(schema) == (
        "`id` BIGINT, `a``b` DOUBLE, `at` TIMESTAMP, `tags` ARRAY<STRING>, "
        "`inner` STRUCT<`ok`: BOOLEAN, `nothing`: STRING>"
    )


# -- failures -----------------------------------------------------------------------------------------------

WORKER = """[STREAM_FAILED] Query [id = d2, runId = 48] terminated with exception: [PYTHON_ERROR] \
Failed when Python streaming data source perform initialOffset: Traceback (most recent call last):
  File "source.py", line 143, in initialOffset
    return to_json(planner.resolve())
                   ^^^^^^^^^^^^^^^
{raised}
 SQLSTATE: 38000
=== Streaming Query ===
Identifier: [id = d2]
"""


def test_of_a_failure_the_innermost_sentence_is_told() -> None:
    ours = RuntimeError(WORKER.format(raised="penstock.model.errors.UnknownTopic: there is no topic 'nix'; create it"))
    assert explain(ours) == "there is no topic 'nix'; create it"
    theirs = RuntimeError(WORKER.format(raised="KeyError: 'amount'"))
    assert explain(theirs) == "KeyError: 'amount'"


def test_what_spark_says_itself_is_told_without_its_plan() -> None:
    from pyspark.errors import AnalysisException

    said = AnalysisException(
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. SQLSTATE: 42703; "
        "line 1 pos 7;\n'Project ['nope]\n+- ~SubqueryAlias orders\n"
    )
    assert explain(said) == (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved.; line 1 pos 7"
    )
    mode = AnalysisException(
        "[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION] Invalid output mode: append. SQLSTATE: 42KDE;\nJoin"
    )
    assert explain(mode).endswith("say how late rows may be, with a watermark, or use the mode update")


def test_errors_of_python_keep_their_name_and_are_bounded() -> None:
    assert explain(ZeroDivisionError("division by zero")) == "ZeroDivisionError: division by zero"
    assert explain(KeyError("a")) == "KeyError: 'a'"
    assert len(explain(ValueError("x" * 100_000))) <= 600
    assert explain(KeyboardInterrupt()) == "interrupted"
