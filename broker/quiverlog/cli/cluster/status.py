"""`quiverlog cluster status`, once or repeatedly, and its judgement as a page for browsers."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Final

import click

from quiverlog.cli.console.failures import ExitCode, explain, one_line
from quiverlog.cli.console.options import (
    bootstrap_option,
    debug_option,
    format_option,
    open_client,
)
from quiverlog.cli.console.spans import watch_option
from quiverlog.cli.console.terminal import clear_screen

if TYPE_CHECKING:
    from quiverlog.cli.console.probes import Dial, Seen
    from quiverlog.client.client import Client
    from quiverlog.tls import ServerTls

__all__ = ["status", "status_page"]

_PAGE_S: Final = 4.0
"""For the look at the brokers; each question for warnings after it takes at most half as long."""
_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:90em;padding:0 1em}"
    "table{border-collapse:collapse;display:block;overflow-x:auto}"
    "td,th{padding:.2em .5em;border-bottom:1px solid #ccc;text-align:left}"
    ".no{color:#b00020}.yes{color:#00693e}"
)


@click.command()
@watch_option
@bootstrap_option
@format_option()
@debug_option
def status(watch: float | None, bootstrap: str, timeout_s: float, output_format: str) -> None:
    """Show whether the cluster is healthy and what to do next; exit code 1 if it is not."""
    from quiverlog.cli.cluster.detail import print_status, status_json
    from quiverlog.cli.console.cluster_health import is_healthy
    from quiverlog.cli.console.output import print_json

    def show(seen: Seen) -> None:
        if watch is not None:
            clear_screen(sys.stdout)
            print(f"{datetime.now().astimezone():%H:%M:%S}, every {watch:g} s\n")
        if output_format == "json":
            print_json(status_json(seen))
        else:
            print_status(seen)

    if watch is None:
        seen = _seen(bootstrap, timeout_s)
        show(seen)
        if not is_healthy(seen.found, seen.probes):
            raise click.exceptions.Exit(ExitCode.FAILED)
        return
    if output_format == "json":
        raise click.UsageError("--watch is for a table: repeat the command for JSON.")
    while True:
        try:
            seen = _seen(bootstrap, timeout_s)
        except Exception as error:  # The reason to watch may be that nothing answers.
            text, code = explain(error)
            if code not in (ExitCode.FAILED, ExitCode.UNREACHABLE):
                raise
            print(f"quiverlog: {one_line(text)}", file=sys.stderr)
        else:
            show(seen)
        print(flush=True)
        time.sleep(watch)


def _seen(bootstrap: str, timeout_s: float) -> Seen:
    from quiverlog.cli.console.probes import seen_or_failure

    began_s = time.monotonic()
    seen = seen_or_failure(bootstrap, timeout_s)
    if seen.found.is_current:
        with open_client(
            bootstrap,
            timeout_s=timeout_s,
            request_timeout_s=timeout_s,
            skipped=seen.silent,
            began_s=began_s,
        ) as client:
            _look_at_topics(seen, client)
    return seen


def _look_at_topics(seen: Seen, client: Client) -> None:
    from quiverlog.cli.console.cluster_health import unfinished_raises, with_fewer_replicas
    from quiverlog.cli.console.staged_rows import staging_rooms, staging_warnings

    by_name = client.metadata().topics
    rooms, _ = staging_rooms(client, by_name)
    topics = by_name.values()
    seen.staging.extend(staging_warnings(rooms, datetime.now(UTC)))
    seen.few.extend(with_fewer_replicas(seen.found, topics))
    seen.not_raised.extend(unfinished_raises(seen.found, topics))


def status_page(address: str, dial: Dial, tls: ServerTls | None, why_not_ready: str) -> str:
    """Return the page of the broker at `address`, to which `dial` connects; others have `tls`."""
    from quiverlog.cli.console.probes import look_once
    from quiverlog.client.base.security import Security
    from quiverlog.client.client import Client
    from quiverlog.errors import QuiverlogError

    # Not the environment's: that is of clients, and this is a broker.
    security = Security(tls=False)
    if tls is not None:
        security = Security(
            ca_file=tls.client_ca_file, cert_file=tls.cert_file, key_file=tls.key_file
        )
    end_s = time.monotonic() + _PAGE_S
    seen = look_once([address], end_s, security, dial) if address else None
    if seen is None:
        reason = why_not_ready or "it does not answer itself: its log may have the reason"
        return _page("not known", f"<p>This broker: {escape(reason)}.</p>")
    # The others' addresses are those for clients, and need not lead to them from here: those of
    # containers do not. Silence there proves nothing; the controller judges.
    seen = replace(seen, probes=[one for one in seen.probes if one.answers])
    if seen.found.is_current:
        # Warnings alone are missing without these answers.
        with contextlib.suppress(QuiverlogError):
            page = Client(
                address,
                client_id="quiverlog-page",
                connect_timeout=_PAGE_S / 2,
                request_timeout=_PAGE_S / 2,
                security=security,
            )
            page.driver.dial = dial
            with contextlib.closing(page) as client:
                _look_at_topics(seen, client)
    return _of_cluster(seen, why_not_ready)


def _of_cluster(seen: Seen, why_not_ready: str) -> str:
    from quiverlog.cli.cluster.detail import broker_rows, status_fields, status_findings
    from quiverlog.cli.console.cluster_health import is_healthy
    from quiverlog.client.base.arguments import html_table

    fields = {**status_fields(seen), "this broker": why_not_ready or "takes clients"}
    del fields["healthy"]
    lines = [
        f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>"
        for name, value in fields.items()
    ]
    advice = "".join(f"<li>{escape(one.text)}</li>" for one in status_findings(seen))
    heads, rows = broker_rows(seen)
    shown = [["" if cell is None else cell for cell in row] for row in rows]
    return _page(
        "healthy" if is_healthy(seen.found, seen.probes) else "not healthy",
        f"<table>{''.join(lines)}</table><h2>What to do</h2>"
        f"{f'<ul>{advice}</ul>' if advice else '<p>Nothing.</p>'}"
        f"<h2>Brokers</h2>{html_table('', heads, shown)}",
    )


def _page(judgement: str, body: str) -> str:
    kind = "yes" if judgement == "healthy" else "no"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="refresh" content="10"><title>quiverlog: {judgement}</title>'
        f"<style>{_STYLE}</style></head><body>"
        f'<h1>quiverlog: <span class="{kind}">{judgement}</span></h1>{body}'
        f"<p>{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC. As <code>quiverlog cluster status</code> "
        'reports it. <a href="/metrics">/metrics</a> <a href="/readyz">/readyz</a> '
        '<a href="/healthz">/healthz</a></p></body></html>'
    )
