"""Which of the two texts of `/metrics` a scraper would rather have: what its field Accept says.

Owns the reading of that field (RFC 9110, 12.5.1). Whatever it says there is an answer: who accepts
neither text is given the plain one, since refusing would only hide the metrics.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["OPENMETRICS", "prefers_openmetrics"]

OPENMETRICS: Final = "application/openmetrics-text"
_PLAIN: Final = ("text/plain", "text/*", "*/*")
"""The ranges that the plain text is one of, the most specific first."""
_WEIGHT: Final = re.compile(r"0(?:\.[0-9]*)?|1(?:\.0*)?")


def prefers_openmetrics(accept: str) -> bool:
    """True for who names OpenMetrics, and gives the plain text no greater weight.

    Args:
        accept: the field's value; of several fields all values, between commas.
    """
    weights: dict[str, float] = {}
    for entry in accept.split(","):
        name, *parameters = (part.strip() for part in entry.lower().split(";"))
        # Prometheus names each of the versions it reads: the best of them counts.
        weights[name] = max(weights.get(name, 0.0), _weight(parameters))
    plain = next((weights[name] for name in _PLAIN if name in weights), 0.0)
    wanted = weights.get(OPENMETRICS, 0.0)
    return wanted > 0 and wanted >= plain


def _weight(parameters: list[str]) -> float:
    """The parameter q; 1 where there is none, or one that is no weight."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            match = _WEIGHT.fullmatch(value.strip())
            return float(match[0]) if match else 1.0
    return 1.0
