"""`GET /v1/models` has two readers: OpenAI's SDKs, and Codex, which says its version and wants a catalogue."""

from typing import Any
from urllib.parse import parse_qs

import httpx
import pytest

from responses_app.api.models import anthropic_page
from responses_app.protocol.codex import Known, catalogue
from responses_app.protocol.errors import ApiError
from tests.kit.inprocess import Server

REQUIRED = {  # Codex 0.169 knows none of a catalogue's models where an entry lacks one of these, or has it as null
    *("slug", "display_name", "base_instructions", "supported_reasoning_levels", "shell_type", "visibility"),
    *("supported_in_api", "priority", "support_verbosity", "truncation_policy", "experimental_supported_tools"),
}


@pytest.mark.parametrize("query", ["", "?client_version=", "?version=0.169.0"])
def test_openais_list(demo_server: Server, query: str) -> None:
    told = httpx.get(f"{demo_server.base_url}/models{query}").json()
    assert (told["object"], [model["id"] for model in told["data"]]) == ("list", ["demo", "hashing-256"])
    assert "models" not in told


def test_each_model_says_what_it_can_do(demo_server: Server) -> None:
    generates, embeds = httpx.get(f"{demo_server.base_url}/models").json()["data"]
    assert {"generate", "structured_outputs", "images"} <= set(generates["capabilities"])
    assert {"/v1/responses", "/v1/completions", "/v1/messages"} <= set(generates["endpoints"])
    assert (embeds["capabilities"], embeds["endpoints"], embeds["dimensions"]) == (["embed"], ["/v1/embeddings"], 256)
    assert embeds["max_model_len"] == 8192
    for model in (generates, embeds):
        assert httpx.get(f"{demo_server.base_url}/models/{model['id']}").json() == model
        for path in model["endpoints"]:
            assert httpx.post(f"{demo_server.url}{path}", json={"model": model["id"]}).status_code == 400


def test_codexs_catalogue(demo_server: Server) -> None:
    model, _ = httpx.get(f"{demo_server.base_url}/models").json()["data"]
    told = httpx.get(f"{demo_server.base_url}/models", params={"client_version": "0.169.0"}).json()
    assert list(told) == ["models"]
    (entry,) = told["models"]
    assert [name for name in REQUIRED if entry.get(name) is None] == []
    assert (entry["slug"], entry["context_window"]) == ("demo", model["max_model_len"])
    assert entry["apply_patch_tool_type"] == "freeform"
    assert entry["input_modalities"] == ["text", "image"]
    assert entry["supports_parallel_tool_calls"] is True
    assert [level["effort"] for level in entry["supported_reasoning_levels"]] == ["low", "medium", "high"]
    assert "*** Begin Patch" in entry["base_instructions"]
    assert entry["truncation_policy"] == {"mode": "tokens", "limit": min(10_000, model["max_model_len"] // 8)}


def test_a_model_that_is_not_loaded_yet_is_in_the_catalogue() -> None:
    (entry,) = catalogue([Known("demo", None, sees=False)])["models"]  # type: ignore[misc]
    assert (entry["context_window"], entry["truncation_policy"]["limit"]) == (None, 10_000)


def test_a_model_without_grammars_gets_no_tool_that_needs_one() -> None:
    (entry,) = catalogue([Known("demo", None, sees=False, is_held=False)])["models"]  # type: ignore[misc]
    assert entry["apply_patch_tool_type"] is None
    assert "apply_patch" not in entry["base_instructions"]


@pytest.mark.parametrize(
    ("query", "ids", "has_more"),
    [
        ("", ["a", "b", "c"], False),
        ("limit=2", ["a", "b"], True),
        ("limit=2&after_id=a", ["b", "c"], False),
        ("limit=1&after_id=a", ["b"], True),
        ("before_id=c", ["a", "b"], False),
        ("limit=1&before_id=c", ["b"], True),
        ("after_id=c", [], False),
    ],
)
def test_a_client_of_anthropics_api_pages_through_models(query: str, ids: list[str], has_more: bool) -> None:
    models: Any = [{"id": name} for name in "abc"]
    page = anthropic_page(models, parse_qs(query))
    assert ([each["id"] for each in page["data"]], page["has_more"]) == (ids, has_more)
    assert (page["first_id"], page["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=1001", "after_id=nobody", "before_id=nobody"])
def test_a_page_of_models_that_cannot_be_is_refused(query: str) -> None:
    with pytest.raises(ApiError) as refused:
        anthropic_page([], parse_qs(query))
    assert refused.value.status == 400
