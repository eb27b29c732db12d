"""The metrics, as `responses_app/observing/metrics.py` declares them."""

from docs.extension.tables import code, table
from responses_app.observing.metrics import Metrics, Numbers


def markdown() -> str:
    """Return the table of the metrics."""
    families = sorted(Metrics().families, key=lambda family: family.name)
    return table(("metric", "kind", "labels", "what it is"), map(_row, families))


def _row(family: Numbers) -> tuple[str, str, str, str]:
    name = f"{family.name}_total" if family.kind == "counter" else family.name
    return code(name), family.kind, ", ".join(map(code, family.labels)), family.about
