"""Download the wheels of a broker for another Python, so that an image is built without an index.

    python scripts/download_wheels.py DIRECTORY 3.11

Owns what is in DIRECTORY: wheels for one version of Python on this machine's platform, for the
dependencies of `quiverlog[broker]` and for what builds it. Downloads nothing when they are there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
STAMP = ".downloaded"


def main() -> None:
    directory, python_version = Path(sys.argv[1]), sys.argv[2]
    pyproject = tomllib.loads(PYPROJECT.read_text())
    project = pyproject["project"]
    wanted = [
        *project["dependencies"],
        *project["optional-dependencies"]["broker"],
        *pyproject["build-system"]["requires"],
    ]
    stamp = directory / STAMP
    told = "\n".join([python_version, *wanted])
    if stamp.exists() and stamp.read_text() == told:
        return
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    pip += ["--only-binary=:all:", "--python-version", python_version, "--dest", str(directory)]
    subprocess.run([*pip, *wanted], check=True)
    stamp.write_text(told)


if __name__ == "__main__":
    main()
