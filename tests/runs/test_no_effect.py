"""What the docs call accepted without effect changes nothing that the engine is asked, and they name it."""

from dataclasses import replace

import pytest

from responses_app.protocol.create_fields import ENCRYPTED_REASONING, KNOWN_INCLUDES, LOGPROBS
from responses_app.protocol.errors import JsonObject
from tests.runs.fakes import TOOL_F, Site
from tests.server import ROOT

WITHOUT_EFFECT: dict[str, JsonObject] = {
    "text.verbosity": {"text": {"verbosity": "high"}},
    "prompt_cache_retention": {"prompt_cache_retention": "24h"},
    "stream_options.include_obfuscation": {"stream_options": {"include_obfuscation": True}},
    "include": {"include": sorted(KNOWN_INCLUDES - {LOGPROBS, ENCRYPTED_REASONING})},
    "metadata": {"metadata": {"a": "b"}},
    "user": {"user": "somebody"},
    "safety_identifier": {"safety_identifier": "somebody"},
}


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
async def test_it_is_accepted_named_and_without_effect(name: str) -> None:
    site = Site()
    site.service.new_id = lambda prefix: f"{prefix}_1"
    plain = await site.ask(input="hi", tools=[TOOL_F])
    other = await site.ask(input="hi", **{"tools": [TOOL_F], **WITHOUT_EFFECT[name]})
    assert other["output"] == plain["output"]
    first, second = site.engine.requests
    assert replace(second, request_id=first.request_id) == first
    section = (
        (ROOT / "docs/reference/not-built.md")
        .read_text()
        .partition("**Accepted without effect**")[2]
        .partition("\n\n")[0]
    )
    assert f"`{name}`" in section
