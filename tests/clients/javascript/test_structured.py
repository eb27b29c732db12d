"""Structured output and forced calls in JavaScript: all that comes fits its schema, at the first try."""

import json
from pathlib import Path

from tests.clients.javascript.node import installed, run_script
from tests.kit.server import Server

APIS = ("responses", "chat")
VERCEL = [f"{api} {way}" for api in APIS for way in ("generateObject", "streamObject", "Output.object")]
OPENAI = [f"{package} {way}" for package in ("openai", "openai-6") for way in ("parse", "stream")]
AGENTS = [f"agents{transport}{way}" for transport in ("", ", websocket") for way in ("", ", streamed")]


async def test_the_sdks_of_vercel_and_openai(daphne_server: Server, tmp_path: Path) -> None:
    script = Path(__file__).with_name("structured.mjs")
    done = await run_script(script, daphne_server.base_url, packages=installed(), folder=tmp_path / "run")
    assert done.exit_code == 0, done.complaints
    told = [json.loads(line) for line in done.printed.splitlines()]
    assert sorted(each["way"] for each in told if "output" in each) == sorted([*VERCEL, *OPENAI, *AGENTS])
    assert [each["called"] for each in told if "called" in each] == [1, 1]

    forced = [each for each in told if each["way"] == "toolChoice"]
    assert len(forced) == 4 * len(APIS)
    for each in forced:
        ((name, arguments, invalid),) = each["calls"]
        wanted = ["find_train"] if isinstance(each["choice"], dict) else ["find_hotel", "find_train"]
        assert name in wanted
        assert (list(arguments), invalid) == (["city"], False)

    loops = [each for each in told if each["way"] in [f"{api} loop" for api in APIS]]
    text = "The demo engine called find_hotel and it returned: a bed in Paris."
    assert [(each["text"], each["steps"], each["used"] > 0) for each in loops] == [(text, 2, True)] * 2 * len(APIS)
    said = {each["way"]: each["texts"] for each in told if "texts" in each}
    assert [said.pop(f"{api} text") for api in APIS] == [["1 2 3 4 5"] * 2] * 2
    ((counted, counted_streamed),) = said.values()
    assert counted == counted_streamed == " 1 2 3"
    assert [each["dimensions"] for each in told if each["way"] == "beside"] == [[256, 256]]
