"""The settings, as `responses_app/conf.py` declares them."""

from responses_app.conf import table


def markdown() -> str:
    """Return the table of the settings."""
    rows = [f"| `{row.name}` | {row.default} | {row.about} |" for row in table()]
    return "\n".join(["| setting | default | what it is |", "|---|---|---|", *rows])
