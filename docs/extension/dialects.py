"""What the switches of a dialect make of which event, as `responses_app/protocol/events/dialects.py` has it."""

from docs.extension.tables import code, table
from responses_app.protocol.events.dialects import RULES, EventPlace, Rule


def markdown() -> str:
    """Return the table of the rules."""
    return table(("switch", "event", "becomes"), map(_row, RULES))


def _row(rule: Rule) -> tuple[str, str, str]:
    about = f" of a part {code(rule.part)}" if rule.part else ""
    place = "" if rule.place is EventPlace.INSTEAD else f" {rule.place.value} it"
    return code(rule.switch), f"{code(rule.event)}{about}", f"{code(rule.becomes)}{place}"
