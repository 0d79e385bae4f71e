"""The dashboard and the alert rules in `ops/` speak of metrics that a broker really has."""

from __future__ import annotations

import itertools
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import quiverlog
from tests.support.broker import BrokerProcess

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
OPS = ROOT / "ops"
NAME = re.compile(r"\bquiverlog_\w+")
LABELS = re.compile(r"\b(quiverlog_\w+)\{([^}]*)\}")
GROUPED = re.compile(r"\bby \(([^)]*)\) \((?:\w+\()?(quiverlog_\w+)")
OF_THE_SCRAPE = {"instance", "job", "le"}


@pytest.fixture(scope="module")
def metrics() -> dict[str, set[str]]:
    """Sample name -> its labels, of a broker that has done a little of everything."""
    with BrokerProcess() as broker, quiverlog.connect(broker.bootstrap) as client:
        client.create_topic("t", "id long")
        with client.producer("t") as producer:
            producer.send([{"id": 1}])
        assert len(client.read("t").to_arrow()) == 1
        with pytest.raises(quiverlog.UnknownTopic):
            client.describe_topic("none")
        with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=30) as answer:
            text = answer.read().decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        suffixes = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",)}
        for suffix in suffixes.get(family.type, ("",)):
            found[family.name + suffix] = set()
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def alerts() -> Iterator[tuple[str, str]]:
    """Name and expression of each rule; the file keeps to one form, which this reads."""
    lines = (OPS / "prometheus-alerts.yml").read_text().splitlines()
    for first, second in itertools.pairwise(lines):
        if name := re.fullmatch(r"      - alert: (\w+)", first):
            expression = re.fullmatch(r"        expr: '?(.*?)'?", second)
            assert expression, second
            yield name[1], expression[1]


def panels() -> Iterator[tuple[str, str]]:
    dashboard = json.loads((OPS / "grafana-dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def test_every_metric_of_rules_and_panels_exists(metrics: dict[str, set[str]]) -> None:
    expressions = [*alerts(), *panels()]
    assert len(expressions) > 50
    unknown = {
        (title, name)
        for title, expression in expressions
        for name in NAME.findall(expression)
        if name not in metrics
    }
    assert unknown == set()


def test_every_label_of_rules_and_panels_exists(metrics: dict[str, set[str]]) -> None:
    unknown = set()
    for title, expression in [*alerts(), *panels()]:
        used = [
            (name, re.findall(r"(\w+)\s*(?:=|!)", labels))
            for name, labels in LABELS.findall(expression)
        ]
        used += [(name, re.findall(r"\w+", labels)) for labels, name in GROUPED.findall(expression)]
        for name, labels in used:
            unknown |= {(title, name, label) for label in labels} - {
                (title, name, label) for label in metrics[name] | OF_THE_SCRAPE
            }
    assert unknown == set()


def test_names_are_given_once_and_what_the_docs_call_alarming_has_a_rule() -> None:
    names = [name for name, _ in alerts()]
    assert len(names) == len(set(names)) > 20
    ids = [
        panel["id"] for panel in json.loads((OPS / "grafana-dashboard.json").read_text())["panels"]
    ]
    assert len(ids) == len(set(ids))
    docs = (ROOT / "docs" / "monitoring.md").read_text()
    table = docs[docs.index("| alert | means |") : docs.index("## Metrics")]
    alarming = set(NAME.findall(table))
    assert len(alarming) > 8
    assert alarming <= {name for _, rule in alerts() for name in NAME.findall(rule)}
