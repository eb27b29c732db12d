"""`make conformance-table`: `respsite conformance` against this server and others; prints the page of it.

One vLLM server without weights says what a model would: calls where calls are asked for, JSON where JSON is. It is
asked by itself, behind respsite, behind LiteLLM's proxy, and behind agentic-api where that can be installed.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import vllm

from bench.conformance_page import page
from bench.vllm.peers import KEY, REQUIREMENTS, Steps, litellm, wait_until_it_answers
from bench.vllm.servers import Bench, Contender, TextServer
from bench.vllm.shapes import small
from responses_app import __version__
from responses_app.extensions.conformance import chats, facts, tools
from tests.kit import pip
from tests.kit.ending import ended_cleanly
from tests.kit.programs import secluded
from tests.kit.server import ROOT, free_port
from tests.system.vllm.server import SERVED_MODEL

AGENTIC = Path(__file__).parent / "agentic" / "requirements.txt"
SECONDS = "60"  # for a check
# What vLLM answers where the script says what a grammar forbids, which a model cannot.
OF_THE_SCRIPT = '"message":"Internal server error"'
TOGETHER = "2"  # checks at once: the engine has one core
THOUGHT = "<|channel|>analysis<|message|>I know what to do about that, and I will do it.<|end|><|start|>assistant"


def _says(when: str, text: str, mark: str = "") -> dict[str, object]:
    return {"when": when, "say": f"{THOUGHT}<|channel|>final{mark}<|message|>{text}<|return|>"}


def _calls(when: str, name: str, arguments: str, end: str) -> dict[str, object]:
    call = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}{end}"
    return {"when": when, "say": THOUGHT + call}


def _begins(when: str, name: str) -> dict[str, object]:
    """Call a tool that is not a function; what it is called with is left to the grammar."""
    return {"when": when, "say": f"{THOUGHT}<|channel|>commentary to={name}", "behind": "brief"}


def _script(json_mark: str, end: str) -> list[dict[str, object]]:
    """Return what a model would say to the prompts of the checks; the first that the last message has in it counts.

    `json_mark` is what vLLM's own grammar wants before JSON in an answer, and `end` what it lets end a call. A message
    without any of the last letters gets what is sampled: with such ones it is tried whether a grammar holds.
    """
    patch = '{"type": "create_file", "path": "a.txt", "diff": "+hello"}'
    return [
        _says(facts.NO_CALL, "I cannot."),
        _says(facts.ASK_SURE, '{"answer": "yes", "sure": true}', json_mark),
        _says(tools.ASK_NESTED, '{"items": [{"size": 1}], "kind": null}', json_mark),
        _calls(facts.ASK_TIME, "get_time", '{"city": "Paris"}', end),
        _calls(facts.ASK_WEATHER, "get_weather", '{"city": "Paris", "days": 2}', end),
        _calls(tools.ASK_PING, "ping", "{}", end),
        _calls(tools.ASK_NAMESPACE, "weather.get_weather", '{"city": "London", "days": 2}', end),
        _calls(tools.ASK_PATCH, "apply_patch", patch, end),
        _calls(tools.ASK_SHELL, "shell", '{"commands": ["ls"]}', end),
        _begins(tools.LIST_FILES, "functions.run"),
        _begins("Use code_interpreter", "python"),
        _says(facts.LONG, " ".join(map(str, range(3000)))),
        _says(chats.COUNT, "1 2 3 4 5 6 7 8 9"),
        *(_says(letter, "Hello!") for letter in " aeioux"),
    ]


def main() -> None:
    """Check all servers, and print the page."""
    with (
        ended_cleanly(),
        tempfile.TemporaryDirectory(prefix="respsite-conformance-") as name,
        ConformanceBench(Steps(), Path(name), small()) as bench,
    ):
        folder, own = Path(name), bench.own
        bench.speak(_script("", "<|call|>"))
        ours = bench.by_server
        told = {"respsite": _checked(bench, "respsite", ours.url)}
        bench.speak(_script(" <|constrain|>json", "<|return|>"))
        with (
            litellm(folder, own, router_settings={"disable_cooldowns": True}) as gateway,
            agentic_api(folder, own) as agentic,
        ):
            urls = {
                "vLLM": own.url,
                "LiteLLM": gateway.url,
                "agentic-api": agentic,
            }
            told |= {who: _checked(bench, who, url) for who, url in urls.items()}
    if path := os.environ.get("CONFORMANCE_JSON"):
        Path(path).write_text(json.dumps(told, indent=2))
    print(page(told, _environment()))


class ConformanceBench(Bench):
    """vLLM's server with the flags that its documentation names for tools."""

    def _text_server(self, name: str, **options: object) -> TextServer:
        tools_too = {"enable_auto_tool_choice": True, "tool_call_parser": "openai"}
        in_reasoning = {"structured_outputs_config": '{"backend": "xgrammar", "enable_in_reasoning": true}'}
        return super()._text_server(name, **tools_too, **in_reasoning, **options)


def _checked(bench: Bench, who: str, url: str) -> dict[str, Any]:
    """Return what the program tells of a server, as JSON."""
    bench.report.step(f"checking {who}")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "respsite", "conformance", url, "--json", "--model", SERVED_MODEL),
            *("--key", KEY, "--seconds", SECONDS, "--at-once", TOGETHER),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout:
        raise SystemExit(f"conformance-table: {who}: {done.stderr}")
    told: dict[str, Any] = json.loads(done.stdout)
    for check in told["checks"]:
        if check["verdict"] == "failed" and OF_THE_SCRIPT in check["came"]:
            check |= {"verdict": "skipped", "came": "the model without weights did not keep to the gateway's grammar"}
    return told


@contextmanager
def agentic_api(folder: Path, behind: Contender) -> Iterator[str]:
    """Start agentic-api in front of vLLM's own server, and give its base URL."""
    port, log = free_port(), folder / "agentic.log"
    server = pip.installed(AGENTIC).with_name("agentic-server")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(server, "--llm-api-base", behind.url.removesuffix("/v1"), "--skip-llm-ready-check"),
                *("--gateway-host", "127.0.0.1", "--gateway-port", str(port)),
                *("--db-url", f"sqlite://{folder / 'agentic.db'}?mode=rwc"),
            ],
            cwd=folder,
            env=secluded(folder),
            stdout=output,
            stderr=output,
        )
    try:
        wait_until_it_answers(f"http://127.0.0.1:{port}/v1/models", process, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait()


def _environment() -> dict[str, str]:
    lines = f"{REQUIREMENTS.read_text()} {AGENTIC.read_text()}".split()
    pinned = dict(line.split("==") for line in lines)
    return {
        "respsite": __version__,
        "vLLM": vllm.__version__,
        "LiteLLM": pinned["litellm"],
        "agentic-api": pinned["agentic-api"],
        "day": time.strftime("%-d %B %Y", time.gmtime()),
    }


if __name__ == "__main__":
    main()
