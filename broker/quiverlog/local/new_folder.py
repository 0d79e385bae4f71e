"""A folder whose files are made together: all of them, or none."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from quiverlog.local.failures import LocalClusterFailed

__all__ = ["new_folder"]


@contextlib.contextmanager
def new_folder(path: Path, *, mode: int = 0o777) -> Iterator[None]:
    """Make a folder, or take an empty one; after an error it is again as it was.

    In place, and not renamed at the end: an empty folder may be where a device is mounted.

    Raises:
        LocalClusterFailed: it holds something.
        OSError: it cannot be made.
    """
    is_there = path.exists()
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    if any(path.iterdir()):
        raise LocalClusterFailed(f"{path} is not empty: name a folder that is, or a new one.")
    try:
        yield
    except BaseException:
        # The disk may fail here as well: what is raised is why.
        for made in path.iterdir():
            if made.is_dir() and not made.is_symlink():
                shutil.rmtree(made, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    made.unlink()
        if not is_there:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise
