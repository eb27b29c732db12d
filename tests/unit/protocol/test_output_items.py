"""Items of every type as OpenAI's Python SDK reads them, and without nulls for what is not set."""

from tests.kit.oracle import nulls_in, validate_event
from tests.kit.output_items import output_items


def test_what_is_not_set_is_absent_in_items_of_every_type() -> None:
    items = list(output_items())
    assert {f"{item['type']}.{path}" for item in items for path in nulls_in(item)} == set()
    for item in items:
        kind = "added" if item.get("status") == "in_progress" else "done"
        event = {"type": f"response.output_item.{kind}", "output_index": 0, "sequence_number": 0, "item": item}
        validate_event(event)
    assert len({str(item["type"]) for item in items}) == 13
