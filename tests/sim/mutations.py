"""Changing one line of a function, in one node of many, for as long as its code runs.

Owns `Mutation`: a function's source is read, one piece of text in it is replaced, the result is
compiled in the function's own module, and `planted` swaps the function's code for the length of a
`with`. The line must be there exactly once: a change of it has to change the bug too.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType

__all__ = ["Mutation", "NotThere", "planted"]


class NotThere(LookupError):
    """The line that a bug changes is not in the code (any more)."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """`before` becomes `after` in the function `module:name` (`Class.method` for methods).

    The module is one of quiverlog, or of the tests where its name begins with `tests.`.
    """

    where: str
    before: str
    after: str

    def function(self) -> FunctionType:
        """The function whose code is changed. Raises NotThere."""
        module_name, _, path = self.where.partition(":")
        try:
            package = "" if module_name.startswith("tests.") else "quiverlog."
            found = importlib.import_module(package + module_name)
            *above, last = path.split(".")
            for name in above:
                found = getattr(found, name)
            found = inspect.getattr_static(found, last)
        except (ImportError, AttributeError) as error:
            raise NotThere(f"{self.where} is not there: {error}") from error
        if isinstance(found, property):
            found = found.fget
        if isinstance(found, (classmethod, staticmethod)):
            found = found.__func__
        found = inspect.unwrap(found)
        assert isinstance(found, FunctionType)
        return found

    def code(self) -> CodeType:
        """The function's code with the change. Raises NotThere."""
        return _compiled(self)


@functools.cache
def _compiled(mutation: Mutation) -> CodeType:
    function = mutation.function()
    source = textwrap.dedent(inspect.getsource(function))
    count = source.count(mutation.before)
    if count != 1:
        raise NotThere(f"{mutation.where} has {count} times: {mutation.before!r}")
    source = source.replace(mutation.before, mutation.after)
    lines = source.splitlines()
    while lines[0].lstrip().startswith("@"):
        del lines[0]
    flags = function.__code__.co_flags & _FUTURE_FLAGS
    scope: dict[str, object] = {}
    # In a class, so that `super()` has its cell. One without a letter mangles no names.
    source = "class _:\n" + textwrap.indent("\n".join(lines), " ")
    code = compile(source, f"<planted in {mutation.where}>", "exec", flags, True)
    exec(code, dict(function.__globals__), scope)  # noqa: S102
    made = vars(scope["_"])[function.__name__]
    assert isinstance(made, FunctionType)
    assert made.__code__.co_freevars == function.__code__.co_freevars, "no closures"
    return made.__code__


_FUTURE_FLAGS = 0x1000000  # from __future__ import annotations


@contextlib.contextmanager
def planted(mutations: tuple[Mutation, ...]) -> Iterator[None]:
    """The bug is there; afterwards it is not."""
    changed = [(mutation.function(), mutation.code()) for mutation in mutations]
    sound = [function.__code__ for function, _ in changed]
    try:
        for function, code in changed:
            function.__code__ = code
        yield
    finally:
        for (function, _), code in zip(changed, sound, strict=True):
            function.__code__ = code
