"""Options and parameter types that several commands share, with Kafka's names; how a client is
opened from them."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from quiverlog.addresses import BOOTSTRAP_DEFAULT, BOOTSTRAP_VARIABLE, parse_address
from quiverlog.cli.console.security import chosen_security, security_option, use_profiles_file
from quiverlog.errors import ConnectionFailed, RequestTimedOut
from quiverlog.limits import REQUEST_TIMEOUT_MS_DEFAULT

if TYPE_CHECKING:
    from quiverlog.client.client import Client

__all__ = [
    "INT32_MAX",
    "INT64_MAX",
    "SECONDS_MAX",
    "Rate",
    "Seconds",
    "bootstrap_option",
    "check_addresses",
    "columns_callback",
    "complete_topics",
    "complete_users",
    "completed",
    "config_option",
    "config_pairs",
    "confirmed",
    "debug_option",
    "format_option",
    "given_timeout_s",
    "open_client",
    "topic_option",
    "was_given",
    "whole_number",
    "without_end",
]

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
SECONDS_MAX = 1_000_000
_LEFT_S_MIN = 0.5
"""The time for a client after probes of all addresses used up `--timeout`."""

_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 1_000,
    "mb": 1_000_000,
    "gb": 1_000_000_000,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}
# Few digits and no exponent: `float` accepts larger numbers than any rate.
_RATE: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([a-z]*)(?:/s)?", re.IGNORECASE)
_Command = TypeVar("_Command", bound=Callable[..., Any])


class Seconds(click.FloatRange):
    """Seconds from `min` to eleven days."""

    def __init__(self, min: float = 0.1) -> None:
        super().__init__(min=min, max=SECONDS_MAX)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = click.FLOAT.convert(value, param, ctx)
        if not math.isfinite(number):  # click accepts `nan` and `inf`.
            self.fail(f"{value!r} is no number of seconds.", param, ctx)
        return float(super().convert(number, param, ctx))


class Rate(click.ParamType[int]):
    """A rate as `20MB/s`, `8MiB` or `500000` (bytes per second); `none` is 0."""

    name = "RATE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        text = str(value).strip()
        if text.lower() in ("none", "0"):
            return 0
        found = _RATE.fullmatch(text)
        factor = _UNITS.get(found[2].lower()) if found else None
        rate = int(float(found[1]) * factor) if found and factor else 0
        if rate < 1:
            self.fail(f"{text!r} is no rate, such as 20MB/s, 8MiB or none.", param, ctx)
        return rate


def whole_number(text: str, number_max: int) -> int | None:
    """Return a number in digits, from 0 to `number_max`; else None."""
    digits = text.strip()
    # The length first: `int` raises for thousands of digits.
    if not (digits.isascii() and digits.isdigit()) or len(digits) > len(str(number_max)):
        return None
    number = int(digits)
    return number if number <= number_max else None


def check_addresses(_ctx: click.Context, _parameter: click.Parameter, value: str) -> str:
    from quiverlog.addresses import PORT_DEFAULT, parse_addresses

    try:
        parse_addresses(value, port_default=PORT_DEFAULT)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None
    return value


def _bootstrap(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str:
    root = ctx.find_root()
    profile = root.params.get("profile")
    # A flag comes before the environment, and this before the profile in use.
    is_flag = root.get_parameter_source("profile") is click.core.ParameterSource.COMMANDLINE
    is_overruled = (
        is_flag
        and parameter.name is not None
        and ctx.get_parameter_source(parameter.name) is click.core.ParameterSource.ENVIRONMENT
    )
    if value is None or is_overruled:
        from quiverlog.cli.console.profiles import chosen_profile

        chosen = chosen_profile(profile)
        if chosen is None:
            value = None
        else:
            value = chosen.bootstrap
            use_profiles_file(ctx, chosen.security_file)
    return check_addresses(ctx, parameter, BOOTSTRAP_DEFAULT if value is None else value)


def bootstrap_option(command: _Command) -> _Command:
    command = click.option(
        "--timeout",
        "timeout_s",
        type=Seconds(),
        default=10.0,
        metavar="SECONDS",
        help="Give up after this long; a transfer, after this long without a row. Not "
        "given: 10 s to reach a broker, 30 s for an answer, 120 s until rows are acknowledged.",
    )(command)
    command = security_option(command)
    return click.option(
        "--bootstrap-server",
        "-b",
        "bootstrap",
        show_default=f"the profile's, else {BOOTSTRAP_DEFAULT}",
        callback=_bootstrap,
        envvar=BOOTSTRAP_VARIABLE,
        show_envvar=True,
        metavar="HOST:PORT,...",
        help="Any broker, or several; the rest is found from there.",
    )(command)


def format_option(*formats: str) -> Callable[[_Command], _Command]:
    """Add `--format`; the first of `formats` is the default."""
    choices = formats or ("table", "json")

    def decorate(command: _Command) -> _Command:
        return click.option(
            "--format",
            "output_format",
            type=click.Choice(choices),
            default=choices[0],
            show_default=True,
            help="How to print the result.",
        )(command)

    return decorate


def debug_option(command: _Command) -> _Command:
    # `run` looks for it among all words; here it is accepted after the command's name too.
    return click.option(
        "--debug", is_flag=True, hidden=True, expose_value=False, help="Show tracebacks."
    )(command)


def topic_option(command: _Command) -> _Command:
    return click.option(
        "--topic",
        "-t",
        required=True,
        metavar="NAME",
        shell_complete=complete_topics,
        help="The topic's name.",
    )(command)


def was_given(parameter: str) -> bool:
    source = click.get_current_context().get_parameter_source(parameter)
    return source not in (None, click.core.ParameterSource.DEFAULT)


def config_option(command: _Command) -> _Command:
    return click.option(
        "--config",
        "-c",
        "config",
        multiple=True,
        callback=config_pairs,
        metavar="KEY=VALUE",
        help="A configuration of the topic, e.g. retention.ms=3600000; may be repeated.",
    )(command)


def config_pairs(
    _ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for word in values:
        key, equals, value = word.partition("=")
        key = key.strip()
        if not equals or not key:
            raise click.BadParameter(f"{word!r} is not KEY=VALUE.")
        if key in pairs:
            raise click.BadParameter(f"{key!r} is given twice.")
        pairs[key] = value.strip()
    return pairs


def columns_callback(
    _ctx: click.Context, _parameter: click.Parameter, value: str | None
) -> list[str] | None:
    if value is None:
        return None
    names = [name.strip() for name in value.split(",")]
    if not all(names):
        raise click.BadParameter(f"{value!r} has an empty column name.")
    return names


@contextlib.contextmanager
def open_client(
    bootstrap: str,
    *,
    timeout_s: float = 10.0,
    request_timeout_s: float | None = None,
    client_id: str = "quiverlog-cli",
    skipped: Iterable[str] = (),
    began_s: float | None = None,
) -> Iterator[Client]:
    """Open a client for one command; stderr names what it waits for.

    Args:
        timeout_s: for reaching a broker.
        request_timeout_s: for one operation, unless `--timeout` was given; None: the client's.
        skipped: addresses that did not answer before, asked only where they must be.
        began_s: when a given `--timeout` began, by the monotonic clock; None: now.

    Raises:
        ConnectionFailed: no address answered in time.
    """
    from quiverlog.cli.console.waiting import shown_waits
    from quiverlog.client.client import Client

    given_s = given_timeout_s()
    request_s = (
        REQUEST_TIMEOUT_MS_DEFAULT / 1000 if request_timeout_s is None else request_timeout_s
    )
    client = Client(
        bootstrap,
        client_id=client_id,
        connect_timeout=timeout_s,
        request_timeout=request_s if given_s is None else given_s,
        security=chosen_security(),
    )
    cluster = client.cluster
    cluster.skipped = frozenset(parse_address(one) for one in skipped)
    deadline_s = math.inf
    if given_s is not None:
        now_s = time.monotonic()
        left_s = given_s if began_s is None else max(_LEFT_S_MIN, began_s + given_s - now_s)
        deadline_s = now_s + left_s
        # Rows stored or read move the deadline: it bounds the time without progress.
        cluster.patience_s, cluster.deadline_s = given_s, deadline_s
    with contextlib.closing(client), shown_waits(cluster.waits, lambda: cluster.deadline_s):
        try:
            client.run(cluster.first_contact())
            cluster.deadline_s = deadline_s
        except RequestTimedOut as error:
            # No request was sent: the outcome is certain.
            raise ConnectionFailed(error.message) from error
        yield client


def given_timeout_s() -> float | None:
    context = click.get_current_context(silent=True)
    if context is None or not was_given("timeout_s"):
        return None
    return float(context.params["timeout_s"])


def without_end(client: Client) -> None:
    """Remove the time limit from the steps that show their progress."""
    client.cluster.deadline_s = client.cluster.patience_s = math.inf


def completed(
    ctx: click.Context, incomplete: str, ask: Callable[[Client], Iterable[str]]
) -> list[str]:
    """Return the names that a broker returns to `ask`, and that begin so; none where it fails."""
    # An error would be printed into the user's line.
    # The scope is for `chosen_security`: brokers may ask for a login.
    with contextlib.suppress(Exception), ctx.scope(cleanup=False):
        bootstrap = ctx.params.get("bootstrap") or BOOTSTRAP_DEFAULT
        with open_client(bootstrap, timeout_s=1.0) as client:
            return [name for name in ask(client) if name.startswith(incomplete)]
    return []


def complete_topics(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    return completed(ctx, incomplete, lambda client: client.list_topics())


def complete_users(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    return completed(ctx, incomplete, lambda client: (one.name for one in client.list_users()))


def confirmed(question: str) -> None:
    """Ask on a terminal; a script must give --yes."""
    import sys

    if not sys.stdin.isatty():
        raise click.UsageError("There is no terminal to ask on: give --yes.")
    click.confirm(question, abort=True, err=True)
