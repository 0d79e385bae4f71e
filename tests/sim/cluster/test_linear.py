"""The checker of linearizability on histories that are known to be good, and known to be bad."""

from __future__ import annotations

import itertools
import random

import pytest

from .linear import NEVER, Operation, is_linearizable, log_model, register_model


def write(value: int, called: int, returned: int = NEVER) -> Operation:
    return Operation("write", value, None, called, returned)


def read(value: int, called: int, returned: int) -> Operation:
    return Operation("read", None, value, called, returned)


def change(before: int, after: int, answer: bool, called: int, returned: int = NEVER) -> Operation:
    return Operation("change", (before, after), answer, called, returned)


def append(value: int, answer: int | None, called: int, returned: int = NEVER) -> Operation:
    return Operation("append", value, answer, called, returned)


def look(offset: int, value: int | None, called: int, returned: int) -> Operation:
    return Operation("read", offset, value, called, returned)


GOOD_REGISTERS = {
    "one after the other": [write(1, 0, 1), read(1, 2, 3), write(2, 4, 5), read(2, 6, 7)],
    "a read beside a write sees the old value": [write(1, 0, 1), write(2, 2, 9), read(1, 3, 4)],
    "or the new one": [write(1, 0, 1), write(2, 2, 9), read(2, 3, 4), read(2, 5, 6)],
    "two writes side by side, turned round": [
        write(1, 0, 9),
        write(2, 1, 8),
        read(1, 10, 11),
    ],
    "outcome unknown: it was written": [write(1, 0, 1), write(2, 2), read(2, 50, 51)],
    "or was not": [write(1, 0, 1), write(2, 2), read(1, 50, 51)],
    "or much later": [write(1, 0, 1), write(2, 2), read(1, 50, 51), read(2, 60, 61)],
    "one of two changes wins": [change(0, 1, True, 0, 5), change(0, 2, False, 0, 5), read(1, 6, 7)],
}
BAD_REGISTERS = {
    "a stale read": [write(1, 0, 1), write(2, 2, 3), read(1, 4, 5)],
    "a read of the future": [read(1, 0, 1), write(1, 2, 3)],
    "back and forth": [write(1, 0, 1), write(2, 2, 20), read(2, 3, 4), read(1, 5, 6)],
    "both changes win": [change(0, 1, True, 0, 5), change(0, 2, True, 0, 5)],
    "a value that no client wrote": [write(1, 0, 1), read(7, 2, 3)],
    "a write that is lost": [write(1, 0, 1), read(0, 2, 3)],
}
GOOD_LOGS = {
    "in order": [append(7, 0, 0, 1), append(8, 1, 2, 3), look(0, 7, 4, 5), look(1, 8, 4, 5)],
    "side by side": [append(7, 1, 0, 9), append(8, 0, 1, 8), look(0, 8, 10, 11)],
    "not answered, and stored": [append(7, None, 0), append(8, 1, 5, 6), look(0, 7, 7, 8)],
    "not answered, and not stored": [append(7, None, 0), append(8, 0, 5, 6), look(1, None, 7, 8)],
}
BAD_LOGS = {
    "lost": [append(7, 0, 0, 1), look(0, None, 2, 3)],
    "two at one offset": [append(7, 0, 0, 1), append(8, 0, 2, 3)],
    "a gap": [append(7, 0, 0, 1), append(8, 2, 2, 3)],
    "another value": [append(7, 0, 0, 1), look(0, 8, 2, 3)],
    "gone again": [append(7, None, 0), look(0, 7, 1, 2), look(0, None, 3, 4)],
    "seen before it was sent": [look(0, 7, 0, 1), append(7, 0, 2, 3)],
}


@pytest.mark.parametrize("name", GOOD_REGISTERS)
def test_good_histories_of_a_value(name: str) -> None:
    assert is_linearizable(GOOD_REGISTERS[name], register_model, 0)


@pytest.mark.parametrize("name", BAD_REGISTERS)
def test_bad_histories_of_a_value(name: str) -> None:
    assert not is_linearizable(BAD_REGISTERS[name], register_model, 0)


@pytest.mark.parametrize("name", GOOD_LOGS)
def test_good_histories_of_a_log(name: str) -> None:
    assert is_linearizable(GOOD_LOGS[name], log_model, ())


@pytest.mark.parametrize("name", BAD_LOGS)
def test_bad_histories_of_a_log(name: str) -> None:
    assert not is_linearizable(BAD_LOGS[name], log_model, ())


@pytest.mark.parametrize("seed", range(20))
def test_a_real_order_is_found_and_one_wrong_answer_is_not_forgiven(seed: int) -> None:
    """Operations that took effect one after the other, with calls and returns around them."""
    rng = random.Random(seed)
    value, history = 0, []
    for moment in range(0, 300, 10):
        called, returned = moment - rng.randrange(15), moment + rng.randrange(1, 15)
        if rng.random() < 0.5:
            value = rng.randrange(1, 100)
            history.append(write(value, called, returned))
        else:
            history.append(read(value, called, returned))
    assert is_linearizable(history, register_model, 0)
    wrong = next(n for n, one in enumerate(history) if one.kind == "read" and n > 5)
    one = history[wrong]
    history[wrong] = read(101, one.called_us, one.returned_us)
    assert not is_linearizable(history, register_model, 0)


def test_it_agrees_with_trying_every_order() -> None:
    found = {True: 0, False: 0}
    for seed in range(300):
        rng = random.Random(seed)
        history = []
        for _ in range(4):
            called = rng.randrange(10)
            returned = called + rng.randrange(8)
            value = rng.randrange(3)
            make = rng.choice((write, read))
            history.append(make(value, called, returned))
        expected = any(_holds(order) for order in itertools.permutations(history))
        assert is_linearizable(history, register_model, 0) == expected, history
        found[expected] += 1
    assert min(found.values()) > 30, found


def _holds(order: tuple[Operation, ...]) -> bool:
    for before, after in itertools.combinations(order, 2):
        if after.returned_us < before.called_us:
            return False
    value = 0
    for one in order:
        is_right, value = register_model(value, one)
        if not is_right:
            return False
    return True


def test_a_history_that_is_too_long_is_reported_as_such() -> None:
    history = [write(n, 0, 1_000) for n in range(40)] + [read(-1, 0, 1_000)]
    with pytest.raises(OverflowError):
        is_linearizable(history, register_model, 0)
