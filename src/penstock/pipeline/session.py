"""A Spark session set up for topics: what a session needs to be quick here stands in one table, with the reason.

Nothing of Spark is imported before it is known to be there, so that what is missing is said in one sentence.
"""

import atexit
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.pipeline.errors import JavaMissing, SparkMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_JAVA: Final = 17
LEAST_SPARK: Final = (4, 3)
JAVA_ANSWER_S: Final = 60

_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing"

SETTINGS: Final[dict[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.sql.session.timeZone": "UTC",  # as records' times are
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Below 10,000 rows a batch's fixed costs show.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.python.unix.domain.socket.enabled": "true",
}

# Where everything is on one machine, checkpoints included. The default manager starts a process or two for every file
# it writes, and the checksummed file system doubles their number.
LOCAL_SETTINGS: Final[dict[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.streaming.checkpointFileManagerClass": f"{_CHECKPOINTS}.FileSystemBasedCheckpointFileManager",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}

# Half the time to the first answer, for sessions that live for minutes.
QUICK_JAVA: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-XX:-UsePerfData")

_LOCAL = re.compile(r"local(\[(\*|\d+)(,\d+)?\])?")
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


def spark_session(
    app_name: str,
    master: str = "local[*]",
    *,
    quick: bool = False,
    class_archive: str | Path | None = None,
    environment: str | Path | None = None,
    **conf: str | int | bool,
) -> "SparkSession":
    """A session whose `penstock` source and sink are there. `master` may be a Connect address, `sc://host:port`.

    Settings of Spark are given as keywords with `__` for each dot, or as `**{"spark.x.y": value}`, and win over ours.

    quick           start soon rather than run fast: for tests and short commands
    class_archive   Java's archive of loaded classes (-XX:SharedArchiveFile), which makes it start sooner still
    environment     a packed Python environment (a .tar.gz with bin/python) with penstock in it, for executors that have
                    none; not needed where every machine has penstock installed
    """
    _check_spark()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    given = {name.replace("__", "."): _text(value) for name, value in conf.items()}
    if master.startswith("sc://"):
        builder = builder.remote(master)
        settings = {name: SETTINGS[name] for name in SETTINGS if name.startswith("spark.sql.")}
    else:
        check_java()
        builder = builder.master(master)
        settings = _settings(master, quick, class_archive, environment)
    for name, value in {**settings, **given}.items():
        builder = builder.config(name, value)
    spark = builder.appName(app_name).getOrCreate()
    # Spark finds the source by its module's name, too, but looks only once: where the worker that looks is killed,
    # there is no such source for the rest of the session.
    from penstock.pipeline import register

    register(spark)
    return spark


def _settings(
    master: str, quick: bool, class_archive: str | Path | None, environment: str | Path | None
) -> dict[str, str]:
    settings = dict(SETTINGS)
    local = _LOCAL.fullmatch(master)
    if local is not None:
        settings |= LOCAL_SETTINGS
        cores = local[2] or "1"
        settings["spark.sql.shuffle.partitions"] = str((os.cpu_count() or 1) if cores == "*" else int(cores))
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    java = list(QUICK_JAVA) if quick else []
    if class_archive is not None:
        java.append(f"-XX:SharedArchiveFile={class_archive}")
    if java:
        settings["spark.driver.extraJavaOptions"] = " ".join(java)
    # Java starts Python by these names, to find data sources and to run tasks: on this machine what runs here,
    # elsewhere whatever the cluster calls its Python.
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if environment is not None:
        _place_environment(Path(environment))
        settings["spark.archives"] = f"{environment}#environment"
        os.environ["PYSPARK_PYTHON"] = "./environment/bin/python"
    elif local is not None:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return settings


def _place_environment(archive: Path) -> None:
    """Stream sources are planned by a worker on the driver's side, which looks for the same relative path here."""
    if not archive.is_file():
        raise SparkMissing(f"there is no packed environment {archive}; make one with venv-pack or conda-pack")
    here = Path("environment").absolute()
    if not here.exists():
        here.symlink_to(sys.prefix, target_is_directory=True)
        atexit.register(here.unlink, missing_ok=True)


# -- what must be there -------------------------------------------------------------------------------------


def _check_spark() -> None:
    try:
        import pyspark
    except ImportError:
        raise SparkMissing("pyspark is not installed; run: pip install 'penstock[spark]'") from None
    version = tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:2])
    if version < LEAST_SPARK:
        wanted = ".".join(map(str, LEAST_SPARK))
        raise SparkMissing(
            f"pyspark {pyspark.__version__} is installed, {wanted} or newer is needed; "
            "run: pip install --upgrade 'penstock[spark]'"
        )
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise SparkMissing("pyarrow is not installed; run: pip install 'penstock[spark]'") from None


def check_java() -> int:
    """The version of the Java that Spark will start. Raises JavaMissing, which says what to install."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    install = (
        f"Spark needs Java {LEAST_JAVA} or newer: install one (Debian and Ubuntu: apt install openjdk-17-jre-headless; "
        "macOS: brew install openjdk@17), or let JAVA_HOME point to it"
    )
    if java is None:
        raise JavaMissing(f"there is no java on the PATH. {install}")
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        where = f"JAVA_HOME is {home}, and " if home else ""
        raise JavaMissing(f"{where}{java} cannot be run: {error}. {install}") from None
    found = _VERSION.search(said.stderr + said.stdout)
    if found is None:
        raise JavaMissing(f"{java} does not tell its version. {install}")
    # Until 8 the number was the second one: 1.8.
    version = int(found[2] or 0) if found[1] == "1" else int(found[1])
    if version < LEAST_JAVA:
        raise JavaMissing(f"{java} is Java {version}. {install}")
    return version


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
