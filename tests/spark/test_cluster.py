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
from tests.support.pages import ROOT, blocks
from tests.support.spark import CONF, environment
from tests.support.spark_cluster import QUIVERLOG, environment_of, running_cluster

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.long, pytest.mark.timeout(400)]
PAGE = ROOT / "docs" / "spark-cluster.md"
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

    def go(master: str, python: str) -> None:
        source, sink = topic(), topic()
        produce(client, source, 0, ROWS)
        words = (master, broker.bootstrap, source, sink, str(tmp_path / "checkpoint"))
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


def test_the_page_is_submitted(cluster: str, broker: Any, client: Any, tmp_path: Path) -> None:
    """An environment in an archive, a module of the job, a file of settings, as they are."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    environment_of(tmp_path / "environment", wheel=wheel)
    (script,) = (b.text for b in blocks(PAGE, "sh") if b.why_not is None)
    (settings,) = (b.text for b in blocks(PAGE, "ini"))
    (job,) = (b.text for b in blocks(PAGE, "python"))
    logs = "import logging\nlogging.basicConfig(level=logging.INFO)\n"
    (tmp_path / "job.py").write_text(f"{logs}{job}")
    (tmp_path / "delays.py").write_text("LATE_MIN = 60\n")
    more = CONF | {"spark.executor.memory": "512m", "spark.cores.max": "2"}
    lines = "".join(f"{key} {value}\n" for key, value in more.items())
    (tmp_path / "spark-defaults.conf").write_text(settings + lines)
    for topic in ("flights", "late"):
        client.create_topic(topic, "carrier string, delay double")
    rows = [{"carrier": "UA", "delay": 2.0}, {"carrier": "AA", "delay": 95.5}]
    with client.producer("flights") as producer:
        producer.send(rows)
    for of_page, here in {
        "spark://master:7077": cluster,
        "broker-1:9292,broker-2:9292": broker.bootstrap,
        "checkpoints/late": str(tmp_path / "checkpoint"),
    }.items():
        assert of_page in script
        script = script.replace(of_page, here)
    done = subprocess.run(
        ["bash", "-eu"],
        input=script,
        cwd=tmp_path,
        env={k: v for k, v in environment().items() if not k.startswith("PYSPARK_")}
        | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=360,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert client.read("late").to_arrow().to_pylist() == rows[1:]
    assert "query late, micro-batch 0, flights: 0 rows behind in 1 partition" in done.stdout
    for topic in ("flights", "late"):
        client.delete_topic(topic)
