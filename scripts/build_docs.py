"""Regenerate the generated pages of docs/ and check every link.

    python scripts/build_docs.py            write what has changed, then check links
    python scripts/build_docs.py --check    write nothing; fail when something would change

Owns the list of generated pages: whole ones, and tables between markers inside written pages
(`<!-- generated: NAME -->` ... `<!-- end -->`). Their contents come from the tables in the code.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the checks of the links are the tidy test's

from benchmarks.kafka import report as kafka  # noqa: E402
from quiverlog import errors  # noqa: E402
from scripts import (  # noqa: E402
    limits_table,
    protocol_json,
    protocol_tables,
    record_tables,
    transcript,
)
from tests.unit.test_tidy import broken_links, files  # noqa: E402

DOCS = ROOT / "docs"
RESULTS = ROOT / "benchmarks" / "results" / "latest.json"
MARKED = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

ERRORS_HEAD = """\
# Errors

Generated from `quiverlog/errors.py` by `make docs`; do not edit.

Each error has a number that never changes. Numbers below 1000 are a broker's, the others the
client's, the command line's or the connector's. *Retriable*: the same request may succeed later,
and quiverlog's clients try it again by themselves within their timeouts. *Refresh*: they ask for
the metadata first. In Python each is a class in `quiverlog` with `code`, `retriable` and `details`.

| code | name | Python | retriable | refresh | what to do |
|---|---|---|---|---|---|
"""


def errors_page() -> str:
    rows = []
    for code, kind in sorted(_error_classes().items()):
        hint = kind.hint.replace("|", "\\|") or "The message names what to change."
        rows.append(
            f"| {code} | `{kind.code_name()}` | `{kind.__name__}` | {_tick(kind.retriable)} |"
            f" {_tick(kind.refresh_metadata)} | {hint} |\n"
        )
    return ERRORS_HEAD + "".join(rows)


def _error_classes() -> dict[int, type[errors.QuiverlogError]]:
    kinds = [k for k in vars(errors).values() if isinstance(k, type)]
    return {k.code: k for k in kinds if issubclass(k, errors.QuiverlogError)}


def _tick(flag: bool) -> str:
    return "yes" if flag else ""


def config_page() -> str:
    from quiverlog.server.config.docs import render

    return render()


def cli_page() -> str:
    from quiverlog.cli.reference import render

    return render()


def spark_table(use_name: str) -> str:
    from pyspark_quiverlog.option_table import Use, options_page

    use = {"read": Use.READ, "write": Use.STREAM_WRITE | Use.BATCH_WRITE}[use_name]
    return options_page(use)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.4g}"


def results_table(names: tuple[str, ...] = ()) -> str:
    """The budgets of the last whole benchmark run, or some of them; empty where there was none."""
    if not RESULTS.exists():
        return ""
    rows = ["| what | quiverlog | baseline | unit | ratio | budget |", "|---|---|---|---|---|---|"]
    for found in json.loads(RESULTS.read_text()):
        if names and found["name"] not in names:
            continue
        verdict = "" if found["ratio"] >= found["budget"] else " (missed)"
        rows.append(
            f"| {found['name']} | {_figure(found['value'])} | {_figure(found['baseline'])} |"
            f" {found['unit']} | {found['ratio']:.2f} | {found['budget']:.2f}{verdict} |"
        )
    return "\n".join(rows) + f"\n\n{_measured()}\n"


def _measured() -> str:
    """When, of which commit and on which machine the last whole run was."""
    details = json.loads(RESULTS.with_name("details.json").read_text())
    machine = details["machine"]
    return (
        f"Measured on {details['measured_at'][:10]}, commit {details['commit']}:"
        f" {machine['cpus']} cores of {machine['cpu']}, {machine['system']}"
        f" {machine['kernel'].partition('-')[0]}, Python {machine['python']},"
        f" load {machine['load_average'][0]:.1f} at the start."
    )


SHORT_RESULTS = (
    "5,000 partitions: start",
    "produce to consume, one row, idle broker: p50 in bare round trips",
    "produce, 1 MiB batches, one connection, no flush",
    "fetch, 1 MiB, warm page cache",
    "Python client, consume dicts of 4 fields",
    "Spark streaming read to noop",
    "Spark streaming write",
)
"""The rows that the README shows."""


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "config.md": config_page,
    "errors.md": errors_page,
    "protocol.json": protocol_json.render,
    "transcript.md": transcript.render,
}
if kafka.RESULTS.exists():
    PAGES["pictures/kafka.svg"] = kafka.picture
TABLES: dict[str, Callable[[], str]] = {
    "kafka-results": kafka.table,
    "metadata-records": record_tables.records_table,
    "protocol-apis": protocol_tables.apis_table,
    "protocol-errors": partial(protocol_tables.errors_table, between_brokers=False),
    "protocol-internal-errors": partial(protocol_tables.errors_table, between_brokers=True),
    "protocol-internal-messages": partial(protocol_tables.messages_tables, between_brokers=True),
    "protocol-limits": limits_table.limits_table,
    "protocol-key-vectors": protocol_tables.key_vectors_table,
    "protocol-messages": partial(protocol_tables.messages_tables, between_brokers=False),
    "spark-read-options": lambda: spark_table("read"),
    "benchmark-results": results_table,
    "readme-kafka": partial(kafka.table, kafka.SHORT),
    "readme-results": partial(results_table, SHORT_RESULTS),
    "spark-write-options": lambda: spark_table("write"),
}


def wanted_texts() -> dict[Path, str]:
    """Return the text that each page with generated parts, or generated wholly, should have."""
    texts = {DOCS / name: make() for name, make in PAGES.items()}
    for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))):
        text = page.read_text()
        if page not in texts and MARKED.search(text):
            texts[page] = MARKED.sub(lambda m: m[1] + TABLES[m[2]]() + m[3], text)
    return texts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    check = parser.parse_args().check
    stale = {
        page: text
        for page, text in wanted_texts().items()
        if not page.exists() or page.read_text() != text
    }
    for page, text in stale.items():
        if not check:
            page.write_text(text)
        print(f"{page.relative_to(ROOT)}: {'is stale: run make docs' if check else 'written'}")
    problems = [p for page in files() if page.suffix == ".md" for p in broken_links(page)]
    print("\n".join(problems) if problems else "every link resolves")
    return 1 if problems or (check and stale) else 0


if __name__ == "__main__":
    sys.exit(main())
