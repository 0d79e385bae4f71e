"""What a process makes at first use is made whole, whichever threads come first.

msgspec shows a description of a type that is half made to a second thread, which then dies of it.
So nothing is described to msgspec outside of an import or the one lock of `quiverlog.first_use`,
and every other state of a module that functions change is in the table below, with its reason.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("broker/quiverlog", "connector/pyspark_quiverlog")

SWITCH_INTERVAL_S = 1e-6
THREADS = 8
PROCESSES = 20
"""Before the lock, each process died with a chance of about a half."""

ALLOWED = {
    "broker/quiverlog/__init__.py __getattr__": "imports lock; set twice is set once",
    "broker/quiverlog/batch/structure.py _passed": "a function of its key, read whole",
    "broker/quiverlog/batch/structure.py _plans": "a function of its key, read whole",
    "broker/quiverlog/cli/console/streams.py _kept": "before any thread",
    "broker/quiverlog/client/base/opening.py __getattr__": "a method, which raises",
    "broker/quiverlog/client/drivers/name_lookup.py _under_way": (
        "setdefault; its own thread removes it"
    ),
    "broker/quiverlog/client/producer/base.py _producers": "one call in C; read at the end",
    "broker/quiverlog/core/controller/image.py _arrow_schema": "a function of its argument",
    "broker/quiverlog/errors.py _BY_CODE": "filled while the module is imported",
    "broker/quiverlog/node/partitions/replica.py _log_config": "a function of its argument",
    "broker/quiverlog/otel.py _originals": "under the module's lock",
    "broker/quiverlog/storage/segment/names.py _is_own": "a function of its argument",
    "broker/quiverlog/storage/segment/names.py own_offset": "a function of its arguments",
    "broker/quiverlog/storage/disk/posix_file.py _region_type": "either of two types does the same",
    "broker/quiverlog/wire/registry.py __getattr__": "under MAKING",
    "broker/quiverlog/wire/registry.py msgspec": "under MAKING",
    "broker/quiverlog/client/base/security.py _warned": "two warnings do no harm",
    "connector/pyspark_quiverlog/__init__.py __getattr__": "imports lock",
    "connector/pyspark_quiverlog/_compat.py _with_rows_of": "setdefault: the first one made counts",
    "connector/pyspark_quiverlog/_compat.py rows_wrapper": "finds a class of PySpark's, makes none",
    "connector/pyspark_quiverlog/exactly_once.py _checked": "as that of routing.py",
    "connector/pyspark_quiverlog/exactly_once.py _written": "under the module's lock",
    "connector/pyspark_quiverlog/options.py _warn_of_literal_password": "two warnings do no harm",
    "connector/pyspark_quiverlog/pool.py _pool": "in a forked child, before any thread",
    "connector/pyspark_quiverlog/routing.py _checked": "a check that is made twice changes nothing",
    "connector/pyspark_quiverlog/sending.py _sent_by": "under the module's lock",
    "connector/pyspark_quiverlog/worker_process.py _freezes": "a bound that may be passed by one",
}
"""File and what it changes after its import: why threads may do so at once."""

_CHANGES = {
    *("add", "append", "clear", "extend", "insert", "pop", "popitem", "popleft"),
    *("appendleft", "discard", "remove", "setdefault", "update"),
}


def names_of(tree: ast.Module) -> set[str]:
    """The variables of a module."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def describes_a_type(call: ast.Call) -> bool:
    """msgspec learns of a type here; `Any` and built-in ones have no description."""
    function = ast.unparse(call.func)
    if function in ("msgspec.msgpack.Decoder", "msgspec.json.Decoder"):
        return bool(call.args) or any(key.arg == "type" for key in call.keywords)
    return (
        function.startswith("msgspec.")
        and function.endswith(".decode")
        and any(key.arg == "type" for key in call.keywords)
    )


def changed_in(function: ast.AST, names: set[str]) -> Iterator[str]:
    """What a function changes of its module, or makes for all that come later."""
    if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        if function.name == "__getattr__":
            yield function.name
        if any("cache" in ast.unparse(one) for one in function.decorator_list):
            yield function.name
    for node in ast.walk(function):
        if isinstance(node, ast.Global):
            yield from node.names
        elif isinstance(node, ast.Subscript | ast.Attribute):
            is_changed = isinstance(node.ctx, ast.Store | ast.Del)
            if is_changed and isinstance(node.value, ast.Name) and node.value.id in names:
                yield node.value.id
        elif isinstance(node, ast.Call):
            if describes_a_type(node):
                yield "msgspec"
            called = node.func
            if (
                isinstance(called, ast.Attribute)
                and called.attr in _CHANGES
                and isinstance(called.value, ast.Name)
                and called.value.id in names
            ):
                yield called.value.id


def found(source: str) -> set[str]:
    """What functions of a module change of it."""
    tree = ast.parse(source)
    names = names_of(tree)
    functions = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    )
    return {name for function in functions for name in changed_in(function, names)}


def test_every_state_of_a_module_that_functions_change_has_its_reason() -> None:
    seen = {
        f"{path.relative_to(ROOT)} {name}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for name in found(path.read_text())
    }
    assert seen - set(ALLOWED) == set(), "made at first use: under MAKING, or at import?"
    assert set(ALLOWED) - seen == set(), "no longer there"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("x = None\ndef f():\n    global x\n    x = 1", {"x"}),
        ("x = {}\ndef f(k):\n    x[k] = 1", {"x"}),
        ("x: list[int] = []\ndef f(k):\n    x.append(k)", {"x"}),
        ("@functools.cache\ndef f(k):\n    return 1", {"f"}),
        ("class C:\n    @cached_property\n    def p(self):\n        return 1", {"p"}),
        ("class C:\n    def __getattr__(self, name):\n        return 1", {"__getattr__"}),
        ("def f(d):\n    return msgspec.json.decode(d, type=T)", {"msgspec"}),
        ("def f(d):\n    return msgspec.msgpack.Decoder(T)", {"msgspec"}),
        ("D = msgspec.msgpack.Decoder(T)\ndef f(d):\n    return D.decode(d)", set()),
        ("def f(d):\n    return msgspec.json.decode(d)", set()),
        ("def f(d):\n    x = {}\n    x[1] = d", set()),
    ],
)
def test_what_is_found(source: str, names: set[str]) -> None:
    assert found(source) == names


PREAMBLE = f"""
import sys, threading
sys.setswitchinterval({SWITCH_INTERVAL_S})
bad = []
def together(work):
    barrier = threading.Barrier({THREADS})
    def run():
        barrier.wait()
        try:
            work()
        except BaseException as error:
            bad.append(error)
    threads = [threading.Thread(target=run) for _ in range({THREADS})]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    if bad:
        raise bad[0]
"""

ANSWERS = """
import msgspec
from quiverlog.wire import messages as m, registry
partition = m.PartitionMetadata(partition=0, replicas=[1, 2], in_sync_replicas=[1])
topic = m.TopicMetadata(name="t", topic_id=b"x" * 16, partitions=[partition])
broker = m.BrokerEndpoint(node_id=1, host="h", port=1)
answer = m.MetadataResponse(correlation_id=1, topics=[topic], brokers=[broker])
raw = msgspec.msgpack.encode(answer)
decoder = registry.APIS[int(m.Api.METADATA)].response_decoder
def work():
    assert decoder.decode(raw) == answer
together(work)
"""

FORK = """
import os
from quiverlog.first_use import MAKING
is_held, may_end = threading.Event(), threading.Event()
def make():
    with MAKING:
        is_held.set()
        assert may_end.wait(60)
def fork():
    child = os.fork()
    if child == 0:
        os._exit(0 if MAKING.acquire(timeout=20) else 1)
    statuses.append(os.waitpid(child, 0)[1])
statuses = []
maker, forker = threading.Thread(target=make), threading.Thread(target=fork)
maker.start()
assert is_held.wait(60)
forker.start()
may_end.set()
maker.join()
forker.join()
assert statuses == [0], statuses
"""


def ended(program: str) -> tuple[int, str]:
    """How a process of its own ends, and with which words."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PREAMBLE + program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr[-300:]


def test_threads_that_decode_their_first_answers_at_once() -> None:
    assert [ended(ANSWERS) for _ in range(PROCESSES)] == [(0, "")] * PROCESSES


def test_a_fork_waits_for_what_another_thread_makes() -> None:
    """A child has what was made whole, and a lock that no thread holds."""
    assert ended(FORK) == (0, "")
