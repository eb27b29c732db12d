"""What the page of fields calls without effect changes nothing that the engine is asked."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from docs.extension.fields import rows
from responses_app.protocol.errors import JsonObject
from responses_app.protocol.requests.create_fields import ENCRYPTED_REASONING, KNOWN_INCLUDES, LOGPROBS, Fields
from tests.kit.fakes import TOOL_F, Site

VALUES: dict[str, object] = {  # where a name is no value of it
    "text.verbosity": "high",
    "prompt_cache_options.ttl": "12h",
    "prompt_cache_options.mode": "explicit",
    "client_metadata": {"a": "b"},
}
OTHERS: dict[str, JsonObject] = {
    "include": {"include": sorted(KNOWN_INCLUDES - {LOGPROBS, ENCRYPTED_REASONING})},
    "metadata": {"metadata": {"a": "b"}},
    "user": {"user": "somebody"},
    "safety_identifier": {"safety_identifier": "somebody"},
}


def without_effect() -> Iterator[str]:
    """Yield the fields of a request that have none."""
    for name, becomes, _ in rows(Fields):
        if becomes == "without effect":
            yield name


def body_of(path: str) -> JsonObject:
    body: object = VALUES.get(path, path)
    for name in reversed(path.split(".")):
        body = {name: body}
    assert isinstance(body, dict)
    return body


@pytest.mark.parametrize("fields", [*map(body_of, without_effect()), *OTHERS.values()], ids=str)
async def test_it_is_accepted_and_without_effect(fields: JsonObject, site: Site) -> None:
    site.service.new_id = lambda prefix: f"{prefix}_1"
    plain = await site.ask(input="hi", tools=[TOOL_F])
    other = await site.ask(input="hi", **{"tools": [TOOL_F], **fields})
    assert other["output"] == plain["output"]
    first, second = site.engine.requests
    assert replace(second, request_id=first.request_id) == first
