"""Work on the items of a stream, some of it ahead of who takes the results.

Owns the order: results come as the items do, and an error in the place of its item. At most twice
as many items are held as there are threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["done_ahead"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def done_ahead(
    work: Callable[[_Item], _Result], items: Iterable[_Item], threads: int
) -> Iterator[_Result]:
    """`work` of each item, in their order. Without threads nothing is done before it is asked."""
    if not threads:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="quiverlog-read") as pool:
        begun: deque[Future[_Result]] = deque()
        try:
            for item in items:
                begun.append(pool.submit(work, item))
                if len(begun) == 2 * threads:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
