"""Data directories that earlier code wrote open with today's, to the row.

The directories in tests/data were made by a broker of the commit that their manifests name; so
were the rows that are expected. Each is opened as it is, after a clean stop and after kill -9.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import quiverlog
from tests.data.make_directories import read_directory, rows
from tests.support.archives import unpack
from tests.support.broker import BrokerProcess
from tests.support.rawclient import RawClient

pytestmark = pytest.mark.process

DATA = Path(__file__).resolve().parents[1] / "data"
ARCHIVES = sorted(DATA.glob("*.tar.xz"))


def test_the_archives_are_small() -> None:
    assert {path.name for path in ARCHIVES} >= {"clean.tar.xz", "killed.tar.xz"}
    assert all(path.stat().st_size < 300 * 1024 for path in ARCHIVES)


def open_archive(archive: Path, place: Path) -> tuple[BrokerProcess, dict[str, Any]]:
    """A broker, not yet started, on the directory; and the manifest."""
    unpack(archive, place)
    manifest = json.loads((place / "manifest.json").read_text())
    clock = (sys.executable, str(DATA / "broker_at.py"), str(manifest["wall_us"]), "broker")
    return BrokerProcess(data_dir=place / "data", command=clock, start_timeout=120), manifest


def go_back(monkeypatch: pytest.MonkeyPatch, manifest: dict[str, Any]) -> None:
    """Give this process, whose client stamps rows, the clock of the broker: today's rows would be
    too far in its future."""
    now_ns = time.time_ns
    shift_ns = manifest["wall_us"] * 1000 - now_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + shift_ns)


def compare(broker: BrokerProcess, manifest: dict[str, Any]) -> None:
    with quiverlog.connect(broker.bootstrap) as client:
        found = read_directory(client)
    assert found.keys() == manifest["topics"].keys()
    for name, topic in manifest["topics"].items():
        assert found[name] == topic, name


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def test_a_kept_directory_reads_to_the_row(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, manifest = open_archive(archive, tmp_path)
    go_back(monkeypatch, manifest)
    assert sum(len(p) for t in manifest["topics"].values() for p in t["rows"].values()) > 5000
    with broker:
        compare(broker, manifest)
        broker.restart()
        compare(broker, manifest)
        broker.restart(kill=True)
        compare(broker, manifest)
        with quiverlog.connect(broker.bootstrap) as client:
            for name, topic in manifest["topics"].items():
                if name == "types":
                    continue
                first = topic["end"]["0"]
                if "id: int64 False" in topic["schemas"]["1"]:
                    with client.producer(name, partition=0) as producer:
                        producer.send(rows(0, 1))
                    assert client.list_offsets(name)[0] == first + 1


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def test_a_retry_of_a_kept_producer_is_a_duplicate(archive: Path, tmp_path: Path) -> None:
    broker, manifest = open_archive(archive, tmp_path)
    assert len(manifest["producers"]) == 6
    with broker, RawClient(broker.address) as client:
        for sent in manifest["producers"]:
            topic = manifest["topics"][sent["topic"]]
            topic_id = bytes.fromhex(topic["topic_id"])
            batch = base64.b64decode(sent["batch"])
            assert client.produce(topic_id, batch).base_offset == sent["base_offset"]
            assert client.list_offset(topic_id) == topic["end"]["0"]
