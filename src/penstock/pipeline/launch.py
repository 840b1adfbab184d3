"""Starts Spark for a command: quiet, and out of the reach of the terminal's Ctrl-C.

The Java process gets a session of its own, so Ctrl-C reaches this process only, which then stops its queries in good
order; otherwise the Python workers that plan a stream would be hit as well, and the query would fail instead. Java ends
by itself when this process does. What it writes is read here: shown with `verbose`, else the newest lines are kept for
whoever has to explain a failure.
"""

import importlib
import logging
import os
import socket
import sys
import threading
import uuid
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from penstock.pipeline.errors import PipelineError
from penstock.pipeline.failures import explain
from penstock.pipeline.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT_LINES: Final = 200
LINE_BYTES: Final = 2_000
REACH_S: Final = 5.0
CONNECT_PORT: Final = 15002

# The port is any that is free; and what is in a catalogue is there again at the next run.
_CONNECT: Final = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.sql.artifact.isolation.enabled": "true",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    "spark.connect.grpc.binding.port": "0",
    "spark.sql.catalogImplementation": "hive",
}


class SparkFailed(PipelineError):
    """Spark could not be started."""


class JavaOutput:
    """What the Java process writes: the newest lines."""

    def __init__(self, shown: bool) -> None:
        self._shown = shown
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)

    def read(self, stream: IO[bytes]) -> None:
        threading.Thread(target=self._work, args=(stream,), name="java output", daemon=True).start()

    def _work(self, stream: IO[bytes]) -> None:
        with stream:
            while line := stream.readline(LINE_BYTES):
                text = line.decode(errors="replace")
                self._lines.append(text)
                if self._shown:
                    sys.stderr.write(text)

    def text(self) -> str:
        return "".join(self._lines)

    def last_error(self) -> str:
        """The line that most likely says why."""
        telling = [line for line in list(self._lines) if "Exception" in line or "rror" in line]
        return (telling or list(self._lines) or [""])[-1].strip()


def launch(
    name: str,
    master: str,
    *,
    verbose: bool = False,
    declared: bool = False,
    environment: str | None = None,
    quick: bool = False,
    settings: dict[str, str] | None = None,
) -> "SparkSession":
    """A session for one run. `declared`: one that declarative pipelines can use, which is a Connect session."""
    conf: dict[str, Any] = {"spark.log.level": "WARN" if verbose else "ERROR", **(settings or {})}
    remote = master.startswith("sc://")
    if remote:
        _check_reachable(master)
    if declared and not remote:
        conf = {**_CONNECT, **conf}
        # Whoever else finds the port is not let in.
        os.environ.setdefault("SPARK_CONNECT_AUTHENTICATE_TOKEN", str(uuid.uuid4()))
    output = JavaOutput(shown=verbose)
    with _own_java(output), warnings.catch_warnings():
        if not verbose:
            warnings.filterwarnings("ignore", module="pyspark")
            # It writes every failed statement to standard error, plan and all; who runs it is told in one line.
            logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
        try:
            session = spark_session(name, master, environment=environment, quick=quick, **conf)
            return _connected(session) if declared and not remote else session
        except PipelineError:
            raise
        except Exception as error:
            why = output.last_error() if "JAVA_GATEWAY_EXITED" in str(error) else ""
            raise SparkFailed(
                f"Spark did not start on {master}: {explain(error)}{f': {why}' if why else ''}"
            ) from error


def _connected(session: Any) -> "SparkSession":
    """A Connect session on the same Spark, through the port that it has taken."""
    service = getattr(session._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    port = getattr(service, "MODULE$").localPort()
    # So PySpark knows which kind of session its functions are for, and that to stop the one is to stop the other.
    os.environ["SPARK_LOCAL_REMOTE"] = os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    connect: Any = importlib.import_module("pyspark.sql.connect.session")
    found: SparkSession = connect.SparkSession.builder.remote(f"sc://localhost:{port}").getOrCreate()
    return found


def _check_reachable(address: str) -> None:
    """PySpark tries for minutes; a wrong address is to be told at once."""
    parts = urlsplit(address)
    host, port = parts.hostname or "localhost", parts.port or CONNECT_PORT
    try:
        socket.create_connection((host, port), REACH_S).close()
    except OSError as error:
        raise SparkFailed(
            f"cannot reach a Spark Connect server at {host}:{port}: {error.strerror or error}; "
            "'start-connect-server.sh' of Spark starts one"
        ) from None


@contextmanager
def _own_java(output: JavaOutput) -> Iterator[None]:
    """Within it, PySpark starts Java as told above: its launcher takes arguments for the process, its caller none."""
    try:
        context: Any = importlib.import_module("pyspark.core.context")
    except ImportError:
        yield  # the session says what is missing
        return
    original = context.launch_gateway

    def launch_gateway(conf: Any = None, popen_kwargs: dict[str, Any] | None = None) -> Any:
        reading, writing = os.pipe()
        output.read(os.fdopen(reading, "rb"))
        try:
            process = {"start_new_session": True, "stdout": writing, "stderr": writing}
            return original(conf, {**(popen_kwargs or {}), **process})
        finally:
            os.close(writing)

    context.launch_gateway = launch_gateway
    try:
        yield
    finally:
        context.launch_gateway = original
