"""The bounds of numbers in requests are the providers': OpenAI's specification, Anthropic's reference, vLLM's."""

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_type_hints

import pytest

from docs.extension.fields import BODIES, TOOLS
from engine.types import TokenSampling
from responses_app.protocol.fields import ClientModel
from responses_app.protocol.rollouts.requests import NewRollout
from tests.project.docs.sdk_fields import inner_types, sdk_types
from tests.project.docs.test_fields import ANTHROPICS_BODIES, SDK_BODIES, TOOL_TYPES

INT64 = f"{-(2**63)}..{2**63 - 1}"
SAMPLING = {  # OpenAI's, and vLLM's (`SamplingParams`) of those that OpenAI does not have
    **{"temperature": "0..2", "top_p": "0..1", "presence_penalty": "-2..2", "frequency_penalty": "-2..2"},
    **{"seed": INT64, "top_k": "-1..", "min_p": "0..1", "repetition_penalty": ">0..", "stop_token_ids[]": ".."},
    **{"logit_bias.*": "-100..100"},
}
CHUNKS = {"max_chunk_size_tokens": "100..4096", "chunk_overlap_tokens": "0.."}
CHUNKING = {f"chunking_strategy.static.{name}": taken for name, taken in CHUNKS.items()}
SEARCH = {"max_num_results": "1..50", "ranking_options.score_threshold": "0..1"}
THINKING = {"thinking.budget_tokens": "1024.."}
VALUE = {"attributes.*": ".."}
ALL = {**BODIES, **TOOLS, "POST /v1/rollouts": NewRollout}
BOUNDS: Mapping[str, Mapping[str, str]] = {  # by body or tool: which numbers its provider takes
    "POST /v1/responses": {
        **SAMPLING,
        **{"max_output_tokens": "16..", "max_tool_calls": "..", "top_logprobs": "0..20", "priority": ".."},
        **{"context_management[].compact_threshold": "1000..", "multi_agent.max_concurrent_subagents": "1.."},
    },
    "POST /v1/chat/completions": {
        **SAMPLING,
        **{"n": "1..128", "max_completion_tokens": "..", "max_tokens": "..", "top_logprobs": "0..20"},
        **{"priority": "..", "prompt_logprobs": "-1.."},
    },
    "POST /v1/messages": {
        **{"max_tokens": "0..", "temperature": "0..1", "top_p": "0..1", "top_k": "0.."},
        **THINKING,
    },
    "POST /v1/messages/count_tokens": THINKING,
    "POST /v1/completions": {
        **SAMPLING,
        **{"max_tokens": "0..", "n": "1..128", "best_of": "0..20", "logprobs": "0..5", "prompt_logprobs": "-1.."},
    },
    "POST /v1/rollouts": {
        **{f"sampling.{name}": taken for name, taken in SAMPLING.items() if name in TokenSampling.model_fields},
        "max_staleness": "..",
    },
    "POST /v1/embeddings": {"dimensions": "1.."},
    "POST /v1/batches": {"output_expires_after.seconds": "3600..2592000"},
    "POST /v1/uploads": {"bytes": "..", "expires_after.seconds": "3600..2592000"},
    "POST /v1/vector_stores": {**CHUNKING, "expires_after.days": "1..365"},
    "POST /v1/vector_stores/{vector_store_id}": {"expires_after.days": "1..365"},
    "POST /v1/vector_stores/{vector_store_id}/search": SEARCH,
    "POST /v1/vector_stores/{vector_store_id}/files": {**VALUE, **CHUNKING},
    "POST /v1/vector_stores/{vector_store_id}/files/{file_id}": VALUE,
    "POST /v1/vector_stores/{vector_store_id}/file_batches": {
        **VALUE,
        **CHUNKING,
        **{f"files[].{name}": taken for name, taken in (VALUE | CHUNKING).items()},
    },
    "POST /v1/organization/projects/{project_id}/api_keys/{api_key_id}": {"expires_in_seconds": ".."},
    "POST /v1/organization/projects/{project_id}/service_accounts": {"expires_in_seconds": ".."},
    "POST /v1/organization/admin_api_keys": {"expires_in_seconds": ".."},
    "POST /v1/organization/projects/{project_id}/data_retention": {"retention_hours": ".."},
    "POST /v1/organization/projects/{project_id}/spend_limit": {"threshold_amount": ".."},
    "POST /v1/organization/spend_limit": {"threshold_amount": ".."},
    "POST /v1/containers": {"expires_after.minutes": ".."},
    "file_search": {
        **SEARCH,
        **{f"ranking_options.hybrid_search.{name}_weight": ".." for name in ("embedding", "text")},
    },
    "image_generation": {"output_compression": "0..100", "partial_images": "0..3"},
}
INT32 = "an engine's number has 32 bits"
OF_A_DATE = "a date in a database"
OTHERWISE: Mapping[str, tuple[str, str]] = {  # what is taken here instead, and why
    "max_output_tokens": ("1..", "a shorter answer is of use, too: see fields.md"),
    "max_tool_calls": ("1..", "without a call, a tool is not declared"),
    "max_completion_tokens": ("1..", "an answer has a token"),
    "POST /v1/chat/completions max_tokens": ("1..", "an answer has a token"),
    "POST /v1/chat/completions n": ("1..8", "each choice is a generation of its own"),
    "POST /v1/completions logprobs": ("0..20", "vLLM gives as many"),
    "prompt_logprobs": ("0..20", "all of a vocabulary are gigabytes"),
    "top_k": (f"-1..{2**31 - 1}", INT32),
    "max_staleness": (f"0..{2**31 - 1}", "a column of a database"),
    "POST /v1/messages top_k": (f"0..{2**31 - 1}", INT32),
    "priority": (f"{-(2**31)}..{2**31 - 1}", INT32),
    "dimensions": ("1..65536", "no model has as many"),
    "bytes": (f"0..{2**63 - 1}", "a column of a database"),
    "chunk_overlap_tokens": ("0..2048", "half of the largest chunk"),
    "expires_in_seconds": ("1..315360000", OF_A_DATE),
    "retention_hours": ("1..87600", "this server's own field"),
    "threshold_amount": (f"0..{10**15}", "a column of a database"),
    "minutes": ("1..1440", "a container takes memory while it lives"),
    "embedding_weight": ("0..100", "weights are compared with each other"),
    "text_weight": ("0..100", "weights are compared with each other"),
}


def numbers(model: type[ClientModel]) -> dict[str, str]:
    """Return what each number of a body may be, by its path."""
    schema = model.model_json_schema()
    return dict(_numbers(schema, schema.get("$defs", {}), ""))


def _numbers(node: dict[str, Any], definitions: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    node = definitions[node["$ref"].rpartition("/")[2]] if "$ref" in node else node
    if node.get("type") in ("integer", "number"):
        least, most = node.get("minimum", ""), node.get("maximum", "")
        above, below = node.get("exclusiveMinimum"), node.get("exclusiveMaximum")
        least, most = least if above is None else f">{above}", most if below is None else below - 1
        yield path, f"{least}..{most}".replace(".0", "")
    for each in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from _numbers(each, definitions, path)
    inner = {f"{path}.{name}".lstrip("."): each for name, each in node.get("properties", {}).items()}
    patterns = {f"{path}.*": each for each in node.get("patternProperties", {}).values()}
    values = node.get("additionalProperties")
    rest = {f"{path}.*": values} if isinstance(values, dict) else {}
    items = {f"{path}[]": node["items"]} if "items" in node else {}
    for at, each in {**inner, **patterns, **rest, **items}.items():
        yield from _numbers(each, definitions, at)


def otherwise(body: str, path: str) -> str | None:
    """Return what is taken here, where that is not what a provider takes."""
    name = path.rpartition(".")[2]
    for key in (f"{body} {name}", name):
        if key in OTHERWISE:
            return OTHERWISE[key][0]
    return None


@pytest.mark.parametrize("body", ALL)
def test_each_number_has_the_bounds_of_its_provider(body: str) -> None:
    theirs = BOUNDS.get(body, {})
    assert numbers(ALL[body]) == {path: otherwise(body, path) or taken for path, taken in theirs.items()}


def test_each_exception_is_one() -> None:
    theirs = {(body, path): taken for body, paths in BOUNDS.items() for path, taken in paths.items()}
    assert [at for at, taken in theirs.items() if otherwise(*at) == taken] == []


BETWEEN = (
    re.compile(r"between (-?[\d.]+)(?: \([^)]*\))? and (-?[\d.]+\d)"),
    re.compile(r"minimum value is `(\d+)` and the maximum value is `(\d+)`"),
    re.compile(r"between (\d+) and (\d+)"),
    re.compile(r"≥(\d+)()"),
    re.compile(r"()maximum value for `\w+` is (\d+)"),
)


def documented(types: list[Any], at: str = "", seen: tuple[Any, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield the bounds that an SDK tells of fields, by their paths without brackets."""
    for each in types:
        for name in get_type_hints(each):
            text = " ".join(_told(each, name).split())
            for pattern in BETWEEN:
                if found := pattern.search(text):
                    yield at + name, "..".join(value.removesuffix(".0") for value in found.groups())
                    break
            inside = [inner for inner in inner_types([_only(each, name)]) if inner not in seen]
            yield from documented(inside, f"{at}{name}.", (*seen, *inside))


def _only(typed: Any, name: str) -> Any:
    hints = get_type_hints(typed)
    return type("Only", (), {"__annotations__": {name: hints[name]}})


def _told(typed: Any, name: str) -> str:
    """Return what stands below a field in the source of a typed dictionary."""
    return _texts(typed.__module__).get(name, "")


@cache
def _texts(module: str) -> dict[str, str]:
    """Return what is told of the fields of a module's typed dictionaries."""
    return {
        field.target.id: str(text.value.value)
        for each in ast.parse(inspect.getsource(sys.modules[module])).body
        if isinstance(each, ast.ClassDef)
        for field, text in zip(each.body, each.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def types_of(body: str) -> list[Any]:
    """Return the types that an SDK has of a body or a tool."""
    if body in ANTHROPICS_BODIES:
        return sdk_types(ANTHROPICS_BODIES[body], "anthropic")
    return sdk_types(SDK_BODIES[body]) if body in SDK_BODIES else TOOL_TYPES[body]


TOLD = {  # some of what the SDKs tell, so that none of it is overlooked
    "POST /v1/responses": {"temperature": "0..2", "top_logprobs": "0..20"},
    "POST /v1/completions": {"frequency_penalty": "-2..2", "logprobs": "..5"},
    "POST /v1/batches": {"output_expires_after.seconds": "3600..2592000"},
    "POST /v1/messages": {"thinking.budget_tokens": "1024.."},
    "POST /v1/vector_stores": {"chunking_strategy.static.max_chunk_size_tokens": "100..4096"},
}


@pytest.mark.parametrize("body", [body for body in BOUNDS if body != "POST /v1/rollouts"])
def test_the_bounds_are_those_that_the_sdks_tell(body: str) -> None:
    told = dict(documented(types_of(body)))
    assert told.items() >= TOLD.get(body, {}).items()
    bounds = {path.replace("[]", ""): taken for path, taken in BOUNDS[body].items()}
    for path, taken in told.items():
        if path in bounds:
            lower, upper = taken.split("..")  # one end may not be told
            assert bounds[path].startswith(lower), path
            assert bounds[path].endswith(f"..{upper}"), path
