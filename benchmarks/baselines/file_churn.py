"""A bare process that makes a disk work as topics that come and go do, and does nothing else.

`python -m benchmarks.baselines.file_churn DIRECTORY PARTITIONS` prints a line when it begins and
runs cycles until its standard input is closed. A cycle makes a directory with three small files for
each partition, each file and its name flushed, one after the other; then removes them all.
"""

from __future__ import annotations

import os
import select
import shutil
import sys
from pathlib import Path

CYCLES_MAX = 1_000
NAMES = ("rows", "epochs", "point")
FILE_BYTES = 1_024


def main(directory: Path, partitions: int) -> None:
    print("begun", flush=True)
    for number in range(CYCLES_MAX):
        root = directory / f"bare-{number}"
        root.mkdir()
        done = all(make(root / str(partition)) for partition in range(partitions))
        shutil.rmtree(root)
        if not done:
            return


def make(path: Path) -> bool:
    """One partition's files; False when the parent has closed our standard input."""
    path.mkdir()
    names = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    for name in NAMES:
        file = os.open(path / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(file, bytes(FILE_BYTES))
        os.fdatasync(file)
        os.close(file)
        os.fsync(names)
    os.close(names)
    return not select.select([sys.stdin], [], [], 0.0)[0]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
