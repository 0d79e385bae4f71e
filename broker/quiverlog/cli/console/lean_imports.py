"""Importing no more than a command needs, where its start counts.

Owns what is hidden while modules are imported. pyarrow imports numpy where that is installed, for
conversions that neither a broker nor `produce` makes (as long as all of pyarrow, twice, and 20
MB), and structlog imports rich, for tracebacks in colours. They take what cannot be imported for
what is not there.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["lean_imports"]


@contextlib.contextmanager
def lean_imports(*hidden: str) -> Iterator[None]:
    """For the time of a `with`: these modules cannot be imported, unless somebody has done so.

    Nor is memory searched for garbage: what an import makes lives for ever (a tenth of a start).
    """
    absent = [name for name in hidden if name not in sys.modules]
    for name in absent:
        sys.modules[name] = cast("ModuleType", None)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        for name in absent:
            del sys.modules[name]
