"""Opens the Spark session of a driver the same way for all jobs, commands and tests.

    spark-submit job.py      the JVM runs already, with `conf/spark-defaults.conf`
    python job.py            the JVM is started here, with the same file

What a caller relies on: executors and Spark's helper processes run this very Python; Ctrl-C is
handled by this process, and does not end the JVM before its queries have been stopped. A text of
SQL means what it says: Spark puts nothing into it.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import SparkSession

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.java_names import java_class
from shardline.installation import CONF

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["open_session", "read_as_written", "settings_within", "stop_session"]

_log = logging.getLogger(__name__)

_NO_VARIABLES: Final = {"spark.sql.variable.substitute": "false"}
"""By default Spark puts a setting, an environment variable or a property of the JVM in the place of
`${name}`, `${env:NAME}` and `${system:name}` in every text of SQL: a query would show the secrets
of the application. A project's own variables are put in before Spark sees its texts."""


def settings_within(folder: Path) -> dict[str, str]:
    """Settings by which a session makes no folder outside of `folder`.

    By default Spark makes its warehouse in the working directory, or in one of another name beside
    it if there is a character that URLs escape, such as a space.
    """
    return {"spark.sql.warehouse.dir": str(folder / "warehouse")}


def open_session(name: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session, and start it if there is none.

    Args:
        name: Name of the application on Spark's pages.
        settings: Spark settings that win over files and the command line.

    Raises:
        InvalidUsage: `CLASSIC_SESSION_NEEDED`: the environment asks for a session of Spark Connect.
    """
    _refuse_connect(os.environ)
    # Read by the launcher that starts a JVM, and not at all when there is one. Its Python is chosen
    # when the package is imported. A Spark of the user's own has settings of its own.
    if "SPARK_HOME" not in os.environ:
        os.environ.setdefault("SPARK_CONF_DIR", str(CONF))
    builder = SparkSession.builder.appName(name)
    for key, value in {**_NO_VARIABLES, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    _leave_interrupts_to_us(spark)
    _write_no_checksum_files(spark)
    return spark


def read_as_written(spark: SparkSession) -> None:
    """Let Spark put nothing into texts of SQL that this session reads from now on.

    For a session that `open_session` has not made, and for clones, which have the settings of
    theirs.
    """
    for name, value in _NO_VARIABLES.items():
        spark.conf.set(name, value)


def stop_session(spark: SparkSession) -> None:
    """Stop Spark at the end of a program; never raises.

    A signal may have interrupted a call to the JVM, whose answer is then taken for that of the next
    call: an error of that would hide why the program ends.
    """
    try:
        spark.stop()
    except Exception:  # noqa: BLE001 - the JVM ends with this process in any case
        _log.warning("Spark was not stopped in order", exc_info=True)


def _refuse_connect(environment: Mapping[str, str]) -> None:
    """Refuse variables by which PySpark makes a session of a server elsewhere, without a JVM here.

    What it says then, if anything, is of packages and attributes, and never of the variable.
    """
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE"):
        value = environment.get(name, "")
        if value and (name != "SPARK_API_MODE" or value.lower() == "connect"):
            raise InvalidUsage(
                f"{name} is '{value}', and this program runs in a Spark of its own, not in one "
                "that it reaches by Spark Connect",
                code="CLASSIC_SESSION_NEEDED",
                hint=f"unset {name}, and leave --remote out; --master names a cluster",
            )


def _leave_interrupts_to_us(spark: SparkSession) -> None:
    """Let the JVM ignore SIGINT, as PySpark does for a JVM that it starts itself.

    A terminal sends Ctrl-C to both processes. A JVM that dies of it takes its queries down in the
    middle of a micro-batch, and every call from here ends in a stack trace.
    """
    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no other door to the JVM
    signals = jvm.sun.misc
    signals.Signal.handle(signals.Signal("INT"), signals.SignalHandler.SIG_IGN)


def _write_no_checksum_files(spark: SparkSession) -> None:
    """Write checkpoints on local disk without a `.crc` file beside each file.

    Each costs a process of its own (`chmod`, without Hadoop's native library): about a quarter of
    the floor of a micro-batch. No setting does this that the RocksDB state store survives.
    """
    conf = spark._jsc.hadoopConfiguration()  # noqa: SLF001 - as above
    java_class(spark, "org.apache.hadoop.fs.FileSystem").getLocal(conf).setWriteChecksum(False)
