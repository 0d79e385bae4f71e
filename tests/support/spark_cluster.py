"""A standalone cluster of Spark, and environments of Python that are not the driver's.

Owns the processes of one master and one worker on 127.0.0.1, which begin with an environment of
their own, and interpreters beside the tests': nothing is installed, packages are linked.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyspark

__all__ = ["QUIVERLOG", "environment_of", "running_cluster"]

SPARK_HOME = Path(pyspark.__file__).parent
SITE_PACKAGES = SPARK_HOME.parent
JAVA = Path(os.environ.get("JAVA_HOME", "/usr")) / "bin" / "java"
STARTS_S_MAX = 120
HOST = "127.0.0.1"

QUIVERLOG = ("quiverlog", "pyspark_quiverlog", "msgspec", "fastcrc")
"""What the driver has and the environments of the workers do not."""


def environment_of(directory: Path, *, wheel: Path | None = None) -> Path:
    """A virtual environment with PySpark and pyarrow; with quiverlog if there is a wheel of it.

    The wheel's own requirements come with it as copies: an archive has no links out of itself.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    (site,) = directory.glob("lib/python3*/site-packages")
    shared = directory if wheel is None else directory.parent / f"{directory.name}-shared"
    shared.mkdir(exist_ok=True)
    for path in SITE_PACKAGES.iterdir():
        name = path.name.partition("-")[0].partition(".")[0]
        if name.strip("_") not in (*QUIVERLOG, "pycache", "editable_impl_quiverlog"):
            target = (site if wheel is None else shared) / path.name
            if path.suffix != ".pth":
                target.symlink_to(path)
    if wheel is not None:
        (site / "shared.pth").write_text(f"{shared}\n")
        with zipfile.ZipFile(wheel) as file:
            file.extractall(site)
        for name in ("msgspec", "fastcrc"):
            shutil.copytree(SITE_PACKAGES / name, site / name)
    return directory


@contextlib.contextmanager
def running_cluster(directory: Path, hosts: Sequence[str] = (HOST,)) -> Iterator[str]:
    """The address of a master that has one worker of two cores for each host.

    Spark starts a speculative attempt on another host only; 127.0.0.2 is one.
    """
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(_java(directory, "master", "master.Master", "--port", "0"))
        address = _seen(log, r"Starting Spark master at (spark://[\d.:]+)")
        for host in hosts:
            resources = ("--cores", "2", "--memory", "1g", "--work-dir", str(directory / "work"))
            worker = _java(
                directory, f"worker-{host}", "worker.Worker", *resources, address, host=host
            )
            _seen(stack.enter_context(worker), r"(Successfully registered) with master")
        yield address


@contextlib.contextmanager
def _java(directory: Path, name: str, main: str, *words: str, host: str = HOST) -> Iterator[Path]:
    log = directory / f"{name}.log"
    command: Sequence[str] = (
        *(str(JAVA), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m"),
        *("-cp", f"{SPARK_HOME}/jars/*", f"org.apache.spark.deploy.{main}"),
        *("--host", host, "--webui-port", "0", *words),
    )
    # Not the test's: a worker's machine has no virtual environment on its PATH.
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(directory),
        "JAVA_HOME": str(JAVA.parent.parent),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_LOCAL_HOSTNAME": host,
    }
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, env=environment) as process,
    ):
        try:
            yield log
        finally:
            process.terminate()


def _seen(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + STARTS_S_MAX
    while time.monotonic() < deadline:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found:
            return found[1]
        time.sleep(0.05)
    raise AssertionError(f"{pattern} is not in {log}:\n{log.read_text(errors='replace')[-3000:]}")
