"""Chat Completions, and the smaller endpoints beside them, with OpenAI's JavaScript SDKs as they are."""

import json
from pathlib import Path

import pytest

from tests.clients.javascript.node import installed, run, run_script
from tests.kit.server import Server

RETURNED = "The demo engine called {} and it returned: {}."
COUNTING = "The user wants me to count."
TOOLS = ["generate_chart", "get_system_health", "get_weather", "query_database"]


@pytest.mark.parametrize("package", ["openai", "openai-6"])
async def test_openai_node(daphne_server: Server, tmp_path: Path, package: str) -> None:
    told = await run("chat.mjs", package, daphne_server.base_url, packages=installed(), folder=tmp_path / "run")
    message = told["whole"]
    assert isinstance(message, dict)
    assert (message["content"], message["reasoning"], message["reasoning_content"]) == ("1 2 3 4 5", COUNTING, COUNTING)
    assert (told["streamed"], told["reasoning"]) == ("1 2 3 4 5", COUNTING)
    assert told["deltas"] > 1  # type: ignore[operator]
    assert told["used"] == [told["used"][0]] * 2  # type: ignore[index]
    assert told["loops"] == [RETURNED.format("forecast", "rain in Paris")] * 2
    assert told["parsed"] == {"city": "Paris", "days": 3}
    assert told["stored"] == [True, "count to 2", {"from": "nobody"}, "1 2", True]
    assert told["texts"] == [" 1 2 3"] * 2
    assert told["dimensions"] == [[256, 256], [64, 64]]
    assert (told["models"], told["retrieved"]) == (["demo", "hashing-256"], "demo")


async def test_openais_cases_for_gpt_oss(daphne_server: Server, tmp_path: Path) -> None:
    """What its compatibility test looks at: a tool was called by its schema, and thoughts are where clients look."""
    script = Path(__file__).with_name("compatible.mjs")
    done = await run_script(script, daphne_server.base_url, packages=installed(), folder=tmp_path / "run")
    assert done.exit_code == 0, done.complaints
    told = [json.loads(line) for line in done.printed.splitlines()]
    cases = [(name, api, way) for api in ("chat", "responses") for name in TOOLS for way in ("streamed", "whole")]
    assert sorted((each["name"], each["api"], each["way"]) for each in told) == sorted(cases)
    required = {
        "generate_chart": {"data": [[1]], "chart_type": "line"},
        "get_system_health": {},
        "get_weather": {"location": "example"},
        "query_database": {"table": "example", "columns": ["example"]},
    }
    for each in told:
        assert each["called"] == [required[each["name"]]]
        assert each["answer"] == RETURNED.format(each["name"], '{"status":"ok"}')
        if each["way"] == "streamed":
            assert each["seen"]["deltas"] > 1
            assert each["seen"]["done"] == (2 if each["api"] == "responses" else 0)
        else:
            fields = 2 if each["api"] == "chat" else 1  # `reasoning` and `reasoning_content` say the same
            thoughts = [f"The user names the function {each['name']}. I call it."] * fields
            assert each["thoughts"] == [thoughts, ["The output is here. Nothing is left to be called."] * fields]
