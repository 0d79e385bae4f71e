"""A standalone cluster whose workers run in another environment than the driver's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import produce, stored_ids
from tests.support.spark import environment
from tests.support.spark_cluster import QUIVERLOG, archive, environment_of, running_cluster

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.long, pytest.mark.timeout(400)]
ROOT = Path(__file__).resolve().parents[2]
ROWS = 100


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as master:
        yield master


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with PySpark and pyarrow, and neither quiverlog nor what it is made of."""
    python = environment_of(tmp_path_factory.mktemp("bare") / "venv") / "bin" / "python"
    look = f"import pyspark, pyarrow, importlib.util as u; print([*map(u.find_spec, {QUIVERLOG})])"
    found = subprocess.run([python, "-c", look], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str([None] * len(QUIVERLOG)), found.stdout
    return str(python)


@pytest.fixture
def run(broker: Any, client: Any, topic: Any, tmp_path: Path) -> Any:
    """Read and write by a driver of its own, and compare what came out."""

    def go(master: str, python: str, *rest: str) -> None:
        source, sink = topic(), topic()
        produce(client, source, 0, ROWS)
        words = (master, broker.bootstrap, source, sink, str(tmp_path / "checkpoint"), *rest)
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.cluster_driver", *words],
            cwd=tmp_path,
            env=environment() | {"PYSPARK_PYTHON": python, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=360,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        result = json.loads(done.stdout.splitlines()[-1])
        assert result["ids"] == list(range(ROWS))
        assert not result.get("exception")
        assert stored_ids(client, sink) == list(range(ROWS))

    return go


def test_register_sends_what_the_workers_lack(run: Any, cluster: str, bare: str) -> None:
    """Without it the planner fails at `load`: No module named 'pyspark_quiverlog'."""
    run(cluster, bare)


CONNECT = """
from pyspark.sql import SparkSession
import pyspark_quiverlog
spark = SparkSession.builder.remote("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    pyspark_quiverlog.register(spark)
except Exception as error:
    print(error.code_name(), error)
spark.stop()
"""


def test_a_server_of_connect_without_it_is_refused_in_one_sentence(
    bare: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CONNECT],
        cwd=tmp_path,
        env=environment() | {"PYSPARK_PYTHON": bare},
        capture_output=True,
        text=True,
        timeout=360,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.startswith(
        "WORKERS_LACK_PACKAGE The interpreter of the Spark Connect server"
    )


def test_an_environment_in_an_archive(run: Any, cluster: str, tmp_path: Path) -> None:
    """The wheel in it; the driver's working directory has it by the same name."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = environment_of(tmp_path / "packed", wheel=wheel)
    os.symlink(packed, tmp_path / "environment")
    run(cluster, "./environment/bin/python", f"{archive(packed)}#environment")
