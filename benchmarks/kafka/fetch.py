"""Apache Kafka, Spark's connector for it and a Python client of it: from where, and which bytes.

Owns the folder that they are kept in, outside the repository (`QUIVERLOG_BENCH_CACHE`, else
`~/.cache/quiverlog-bench`). `jars.txt` names each JAR and its SHA-256: the class path of a broker
as `kafka_2.13` and its dependencies name it, Kafka's own tools, and the connector. A file whose
bytes are others is refused. `MAVEN_MIRROR` replaces the address of Maven Central.

The Python client goes into a folder of its own: it must never become one of quiverlog's.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("jars.txt")
MAVEN_CENTRAL = "https://repo1.maven.org/maven2"
PYTHON_CLIENT = "confluent-kafka==2.16.1"
SECONDS_MAX = 60
TRIES = 3
INSTALL_SECONDS_MAX = 300

__all__ = ["Jar", "add_python_client", "download", "fetch", "table", "version_of"]


@dataclass(frozen=True, slots=True)
class Jar:
    """A file in Maven's repository, and the bytes that it must have."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.name}"


def table() -> dict[str, list[Jar]]:
    """The JARs of each section of the table."""
    sections: dict[str, list[Jar]] = {}
    for line in TABLE.read_text().splitlines():
        if line.startswith("["):
            jars = sections.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            sha256, coordinates = line.split()
            jars.append(Jar(*coordinates.split(":"), sha256))
    return sections


def version_of(section: str, artifact: str) -> str:
    """The version of one JAR."""
    return next(jar.version for jar in table()[section] if jar.artifact == artifact)


def kept_in() -> Path:
    """Where all of it is kept."""
    found = os.environ.get("QUIVERLOG_BENCH_CACHE")
    return Path(found) if found else Path.home() / ".cache" / "quiverlog-bench"


@cache
def fetch(section: str) -> list[Path]:
    """Return the JARs of a section, downloaded unless they are there already.

    Raises:
        RuntimeError: one cannot be had, or has other bytes than those of the table.
    """
    folder = kept_in() / "jars"
    folder.mkdir(parents=True, exist_ok=True)
    jars = table()[section]
    missing = [jar for jar in jars if _sha256(folder / jar.name) != jar.sha256]
    for number, jar in enumerate(missing, 1):
        print(f"  fetching {number} of {len(missing)}: {jar.name}", flush=True)
        part = folder / f"{jar.name}.part"
        download(jar, part)
        part.replace(folder / jar.name)
    return [folder / jar.name for jar in jars]


def download(jar: Jar, to: Path) -> None:
    """Raises RuntimeError when it cannot be had, or has other bytes."""
    mirror = os.environ.get("MAVEN_MIRROR", MAVEN_CENTRAL).rstrip("/")
    address = f"{mirror}/{jar.path}"
    for attempt in range(1, TRIES + 1):
        try:
            with urllib.request.urlopen(address, timeout=SECONDS_MAX) as answer, to.open("wb") as f:
                shutil.copyfileobj(answer, f)
            break
        except (urllib.error.URLError, OSError) as error:
            if attempt == TRIES:
                raise RuntimeError(
                    f"{address} cannot be fetched ({error}): with another mirror of Maven Central,"
                    " set MAVEN_MIRROR to its address"
                ) from error
            time.sleep(attempt)
    found = _sha256(to)
    if found != jar.sha256:
        to.unlink()
        raise RuntimeError(f"{address} has the SHA-256 {found}, the table has {jar.sha256}")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def add_python_client() -> None:
    """Make `confluent_kafka` importable in this process alone."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = kept_in() / f"python{version}-{re.sub(r'[^0-9.]+', '', PYTHON_CLIENT)}"
    if not (folder / "confluent_kafka").exists():
        print(f"  installing {PYTHON_CLIENT} into {folder}", flush=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run(
            [*pip, "--disable-pip-version-check", "--target", str(folder), PYTHON_CLIENT],
            check=True,
            timeout=INSTALL_SECONDS_MAX,
        )
    sys.path.append(str(folder))
