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
    """`work` of each item, in their order.

    With threads the first items are worked on from now on: whoever has something else to do before
    the results are taken does it meanwhile. Without threads nothing is done before it is asked.
    """
    if not threads:
        return map(work, items)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="quiverlog-read")
    left = iter(items)
    begun: deque[Future[_Result]] = deque()
    _begin(pool, work, left, begun, 2 * threads)
    return _results(pool, work, left, begun, 2 * threads)


def _begin(
    pool: ThreadPoolExecutor,
    work: Callable[[_Item], _Result],
    left: Iterator[_Item],
    begun: deque[Future[_Result]],
    count: int,
) -> None:
    """Have `count` results under way, or all that are left."""
    while len(begun) < count:
        try:
            begun.append(pool.submit(work, next(left)))
        except StopIteration:
            return
        except Exception as error:  # the items' own; there are no more of them
            failed: Future[_Result] = Future()
            failed.set_exception(error)
            begun.append(failed)
            return


def _results(
    pool: ThreadPoolExecutor,
    work: Callable[[_Item], _Result],
    left: Iterator[_Item],
    begun: deque[Future[_Result]],
    count: int,
) -> Iterator[_Result]:
    try:
        while begun:
            yield begun.popleft().result()
            _begin(pool, work, left, begun, count)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
