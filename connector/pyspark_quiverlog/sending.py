"""Sends quiverlog to Spark's workers whose interpreter does not have it.

It and the two small compiled packages that its client needs go as archives that Spark unpacks where
its workers import from: compiled modules cannot be imported from a zip. Not pyarrow: without it
Spark's own part of a data source fails.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
import zipfile
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any, Final

from quiverlog.errors import WorkersLackPackage, WorkersPythonDiffers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PACKAGES", "check_server", "context_of", "is_missing_in", "sent"]

PACKAGES: Final = ("quiverlog", "pyspark_quiverlog", "msgspec", "fastcrc")
_LOOK: Final = (
    "import sys\n"
    "from importlib.util import find_spec\n"
    "print('%d.%d' % sys.version_info[:2])\n"
    "print(','.join(name for name in sys.argv[1:] if find_spec(name) is None))"
)
_LOOK_S_MAX: Final = 60
_PATH: Final = "PYTHONPATH"
# Sent again, the packages would be unpacked under running workers.
_sent_by: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
# Two threads that register at once would send twice, and one would restore the other's path.
_sending: Final = threading.RLock()


def context_of(spark: SparkSession) -> Any | None:
    """None: Spark Connect, whose workers are the server's."""
    try:
        return spark.sparkContext
    except Exception:  # each version has another exception for its absence
        return None


def is_missing_in(python: str) -> bool:
    """Return whether this interpreter, on the driver's machine, must be sent the packages.

    Raises:
        WorkersLackPackage: Spark cannot plan with it at all, or it does not end in time.
        WorkersPythonDiffers: it is of another version.
    """
    try:
        done = subprocess.run(
            [python, "-c", _LOOK, "pyarrow", *PACKAGES],
            capture_output=True,
            text=True,
            timeout=_LOOK_S_MAX,
            check=False,
        )
    except OSError as error:
        raise WorkersLackPackage(
            f"PYSPARK_PYTHON is {python}, which Spark also starts in the driver's working "
            f"directory, where it does not run ({error.strerror}): give a path that runs on the "
            "driver's machine and on every worker's, or link the environment of --archives to "
            "that name in the driver's working directory."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise WorkersLackPackage(
            f"PYSPARK_PYTHON is {python}, which did not end within {_LOOK_S_MAX} s when asked for "
            "its packages: run it by hand, or name an interpreter that starts."
        ) from error
    # The last two lines: an interpreter's wrapper may print before them.
    version, names = ["", "", *done.stdout.splitlines()][-2:]
    missing = set(names.split(",")) - {""}
    if done.returncode or "pyarrow" in missing:
        raise WorkersLackPackage(
            f"PYSPARK_PYTHON is {python}, which has no pyarrow, and no data source of Python works "
            "without it: install it there on every machine, or name an interpreter that has it."
        )
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if version != ours:
        raise WorkersPythonDiffers(
            f"PYSPARK_PYTHON is {python}, which is Python {version}, and the driver runs Python "
            f"{ours}: Spark runs no Python of another version. Set PYSPARK_PYTHON to a Python "
            f"{ours}, or PYSPARK_DRIVER_PYTHON to a Python {version}."
        )
    return bool(missing)


@contextlib.contextmanager
def sent(spark: SparkSession, context: Any) -> Iterator[None]:
    """Send the packages, once per context; what is registered within the `with` finds them."""
    from pyspark import SparkFiles

    with _sending:
        if context not in _sent_by:
            # Executors that start later fetch them then, so they stay as long as the driver runs.
            directory = tempfile.mkdtemp(prefix="quiverlog-")
            atexit.register(shutil.rmtree, directory, ignore_errors=True)
            for name in PACKAGES:
                spark.addArtifacts(f"{_packed(name, directory)}#{name}", archive=True)
            _sent_by.add(context)
        # Workers search where the archives are unpacked, but a stream's source process has the path
        # of the environment with which a function is made.
        before = context.environment.get(_PATH)
        paths = [SparkFiles.getRootDirectory(), *([before] if before else [])]
        context.environment[_PATH] = os.pathsep.join(paths)
        try:
            yield
        finally:
            if before is None:
                del context.environment[_PATH]
            else:
                context.environment[_PATH] = before


def check_server(spark: SparkSession) -> None:
    try:
        # Spark's planner creates the source, which then misses an option.
        _ = spark.read.format("quiverlog").load().schema
    except Exception as error:
        if not any(f"No module named '{name}'" in str(error) for name in PACKAGES):
            return
        raise WorkersLackPackage(
            "The interpreter of the Spark Connect server's workers (its PYSPARK_PYTHON) does not "
            "have quiverlog: install it there and on its executors; a client cannot send it."
        ) from error


def _packed(name: str, directory: str) -> str:
    path = os.path.join(directory, f"{name}.zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for inner, data in _content(files(importlib.import_module(name)), ""):
            archive.writestr(inner, data)
    return path


def _content(directory: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in directory.iterdir():
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _content(entry, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}", entry.read_bytes()
