"""Declarative pipelines: datasets and flows that Spark puts in order and brings up to date, by our own runner.

Spark's command for them ends with an error after a run that went well, forgets its catalogue, and wants a database
that exists. Here a run that went well ends well, the catalogue is kept beside the checkpoints, the database is made. A
run brings everything up to date and ends; `every_s` begins the next one after so long.

In a .sql file, comments tell which topics it reads and writes:

    -- topic orders (customer STRING, amount DOUBLE)     the values' fields; without them they are inferred
    -- topic eu.orders as orders                         a view of another name
    -- sink alerts from large                            the rows of the view `large` go to the topic alerts
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.pipeline.files import InvalidPipeline, PipelineFile, load_module
from penstock.pipeline.jobs.desk import Desk
from penstock.pipeline.progress import Reading, State
from penstock.pipeline.runner import Run
from penstock.pipeline.views import TopicView, infer, stream
from penstock.wire.native.messages import FindTopic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_FILES: Final = 1_000

_TOPIC = re.compile(r"^--\s*topic\s+([\w.-]+)(?:\s+as\s+(\w+))?\s*(?:\((.*)\))?\s*$", re.MULTILINE | re.IGNORECASE)
_SINK = re.compile(r"^--\s*sink\s+([\w.-]+)\s+from\s+(\w+)\s*$", re.MULTILINE | re.IGNORECASE)
_FLOW = re.compile(r"^Flow '?([^' ]+)'? (?:is|has|SKIPPED)\b ?([A-Z]*)")
_STATES: Final[dict[str, State]] = {
    "QUEUED": "starting",
    "PLANNING": "starting",
    "STARTING": "starting",
    "RUNNING": "running",
    "COMPLETED": "stopped",
    "FAILED": "failed",
    "STOPPED": "stopped",
}


@dataclass(frozen=True)
class Declaration:
    """A declarative pipeline: where its files are, and what Spark is told of it."""

    root: Path
    files: Sequence[Path]
    storage: str
    catalog: str | None = None
    database: str | None = None
    configuration: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None


def settings_of(home: Path) -> dict[str, str]:
    """What a session must be started with so that a second run finds the tables of the first."""
    home = home.absolute()
    home.mkdir(parents=True, exist_ok=True)
    return {
        "spark.driver.defaultJavaOptions": f'"-Dderby.stream.error.file={home / "derby.log"}"',
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={home / 'metastore'};create=true",
        "spark.sql.connect.serverStacktrace.enabled": "false",
    }


def read_declaration(file: PipelineFile, home: Path) -> Declaration:
    if file.path.suffix not in (".yml", ".yaml"):
        return Declaration(file.path.parent, [file.path], (home / "storage").absolute().as_uri())
    import yaml
    from pyspark.errors import PySparkException
    from pyspark.pipelines.cli import load_pipeline_spec

    try:
        spec = load_pipeline_spec(file.path)
    except (PySparkException, yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidPipeline(f"{file.path.name}: {' '.join(str(error).split())}") from None
    root = file.path.parent
    files = list(dict.fromkeys(path for library in spec.libraries for path in _matching(root, library.include)))
    if not files:
        raise InvalidPipeline(f"{file.path.name} names no files that are there; see its 'libraries'")
    return Declaration(root, files, spec.storage, spec.catalog, spec.database, spec.configuration, spec.name)


def _matching(root: Path, pattern: str) -> Iterator[Path]:
    for count, path in enumerate(sorted(root.glob(pattern))):
        if count >= MAX_FILES:
            raise InvalidPipeline(f"more than {MAX_FILES} files match {pattern}")
        if path.is_file() and path.suffix in (".py", ".sql"):
            yield path


def run_declared(
    run: Run,
    spark: "SparkSession",
    declaration: Declaration,
    *,
    server: str,
    every_s: float | None = None,
    full_refresh: bool = False,
) -> int:
    """Bring everything up to date, once or again and again. How many times."""
    run.cancel = lambda: _interrupt(spark)
    if declaration.database is not None:
        spark.sql(f"CREATE DATABASE IF NOT EXISTS `{declaration.database}`")
    times = 0
    while True:
        _once(run, spark, declaration, server, full_refresh and times == 0)
        times += 1
        if every_s is None or not run.rest(every_s):
            return times


def _once(
    run: Run,
    spark: "SparkSession",
    declaration: Declaration,
    server: str,
    full_refresh: bool,
) -> None:
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

    graph = create_dataflow_graph(
        spark,
        default_catalog=declaration.catalog,
        default_database=declaration.database,
        sql_conf=dict(declaration.configuration),
    )
    registry = SparkConnectGraphElementRegistry(spark, graph)
    for file in declaration.files:
        _register(spark, graph, registry, file, declaration.root, server)
    events = start_run(
        spark,
        graph,
        full_refresh=None,
        full_refresh_all=full_refresh,
        refresh=None,
        dry=False,
        storage=declaration.storage,
    )
    # Among the events are things of Spark's own, such as accumulators of Python workers: they are none of ours.
    for event in events:
        if (told := event.get("pipeline_event_result")) is not None:
            _note(run, told.event.message)


def _register(
    spark: "SparkSession",
    graph: str,
    registry: Any,
    file: Path,
    root: Path,
    server: str,
) -> None:
    from pyspark.pipelines.add_pipeline_analysis_context import add_pipeline_analysis_context
    from pyspark.pipelines.block_session_mutations import block_session_mutations
    from pyspark.pipelines.graph_element_registry import graph_element_registration_context

    if file.suffix == ".py":
        with (
            graph_element_registration_context(registry),
            add_pipeline_analysis_context(spark=spark, dataflow_graph_id=graph, flow_name=None),
            block_session_mutations(),
        ):
            load_module(file, spark=spark)
        return
    text = file.read_text(encoding="utf-8")
    views, sinks = directives(text)
    # Once, and not whenever Spark asks what the view is.
    views = [one if one.schema else replace(one, schema=infer(server, one.topic)) for one in views]
    _make_topics(server, [*(one.topic for one in views), *sinks.values()])
    with graph_element_registration_context(registry):
        _declare(spark, views, sinks, server)
    registry.register_sql(text, file.relative_to(root))


def _make_topics(server: str, topics: Sequence[str]) -> None:
    """Topics are made on first use, where the server does so; or it says that they are not there."""
    with Desk(server) as desk:
        for topic in topics:
            desk.ask(FindTopic(topic))


def directives(text: str) -> tuple[list[TopicView], dict[str, str]]:
    """What the comments of a SQL file tell: topics as views, and the topics that views of the file go to."""
    views = [TopicView(view or topic, topic, schema or None) for topic, view, schema in _TOPIC.findall(text)]
    return views, {view: topic for topic, view in _SINK.findall(text)}


def _declare(spark: "SparkSession", views: Sequence[TopicView], sinks: Mapping[str, str], server: str) -> None:
    from pyspark import pipelines as dp

    for one in views:
        dp.temporary_view(name=one.view)(_reader(spark, one, server))
    for view, topic in sinks.items():
        # SQL has no words for a flow into a sink.
        name = f"{view}_to_topic"
        dp.create_sink(name, "penstock", {"server": server, "topic": topic})
        dp.append_flow(target=name, name=name)(_table(spark, view))


def _table(spark: "SparkSession", view: str) -> Callable[[], Any]:
    return lambda: spark.readStream.table(view)


def _reader(spark: "SparkSession", view: TopicView, server: str) -> Callable[[], Any]:
    return lambda: stream(spark, server, view)


def _note(run: Run, message: str) -> None:
    found = _FLOW.match(message)
    if found is None:
        if "COMPLETED" not in message and "RUNNING" not in message:
            run.display.note(message.splitlines()[0])
        return
    flow = found[1].removeprefix("spark_catalog.").removeprefix("default.")
    state = _STATES.get(found[2], "stopped")
    before = run.flows.get(flow, Reading(flow))
    batches = before.batches + (found[2] == "COMPLETED")
    run.flows[flow] = Reading(flow, state, batches=batches, message=" ".join(message.split()))


def _interrupt(spark: Any) -> None:
    spark.interruptAll()
