"""What a broker process answers at `/metrics`."""

from __future__ import annotations

import re
import urllib.request

from .broker import BrokerProcess

__all__ = ["metrics"]


def metrics(broker: BrokerProcess) -> dict[str, float]:
    """Name without `quiverlog_` -> value, with its labels, if any."""
    with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    found = re.findall(r"^quiverlog_(\w+(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}
