"""Download the wheels of a broker for another Python, so that an image is built without an index.

    python scripts/download_wheels.py DIRECTORY 3.11

Owns what is in DIRECTORY: wheels for one version of Python on this machine's platform, for the
dependencies of `quiverlog[broker]` and for what builds it, as the files of hashes name them.
Downloads nothing when they are there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HASHED = (ROOT / "requirements-image.txt", ROOT / "requirements-build.txt")
STAMP = ".downloaded"


def main() -> None:
    directory, python_version = Path(sys.argv[1]), sys.argv[2]
    stamp = directory / STAMP
    inputs = "\n".join([python_version, *(path.read_text() for path in HASHED)])
    if stamp.exists() and stamp.read_text() == inputs:
        return
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    pip += ["--only-binary=:all:", "--python-version", python_version, "--dest", str(directory)]
    pip += ["--no-deps", "--require-hashes"]
    for path in HASHED:  # one after the other: both may name a package
        subprocess.run([*pip, "--requirement", str(path)], check=True)
    stamp.write_text(inputs)


if __name__ == "__main__":
    main()
