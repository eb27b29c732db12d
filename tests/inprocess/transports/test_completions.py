"""`/v1/completions` over HTTP: OpenAI's SDK, streams, several prompts, stop strings, and what is refused."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from engine.formats.harmony.encoding import RETURN, START, decode_tokens
from tests.kit.clients import http_client, ready
from tests.kit.closed import bearer
from tests.kit.inprocess import ClosedServer, Server
from tests.kit.scripts import aborted_prompts, main_script
from tests.kit.sdk import sdk_of
from tests.kit.waiting import eventually

COUNTED = " 1 2 3 4 5"


def test_openais_sdk(demo_server: Server) -> None:
    with sdk_of(demo_server) as client:
        whole = client.completions.create(model="demo", prompt="count to 5", max_tokens=50)
        parts = list(
            client.completions.create(
                model="demo", prompt="count to 5", max_tokens=50, stream=True, stream_options={"include_usage": True}
            )
        )
    (choice,) = whole.choices
    assert (choice.text, choice.finish_reason, choice.index, choice.logprobs) == (COUNTED, "stop", 0, None)
    assert (whole.object, whole.model) == ("text_completion", "demo")
    assert whole.id.startswith("cmpl-")
    usage = whole.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    *said, last = parts
    assert "".join(part.choices[0].text for part in said) == COUNTED
    assert [part.choices[0].finish_reason for part in said if part.choices[0].finish_reason] == ["stop"]
    assert len({part.id for part in parts}) == 1
    for part in (whole, *parts):
        assert part.system_fingerprint == whole.system_fingerprint
        assert (part.model_extra or {})["service_tier"] == "default"
    assert str(whole.system_fingerprint).startswith("fp_")
    assert (last.choices, last.usage) == ([], usage)
    assert all(part.usage is None for part in said)


def test_a_stream_without_usage_has_no_word_of_it(demo_server: Server) -> None:
    text = demo_server.post("/completions", prompt="count to 5", stream=True).text
    assert text.endswith("data: [DONE]\n\n")
    assert "usage" not in text


def test_sixteen_tokens_where_nothing_is_said(demo_server: Server) -> None:
    answer = demo_server.post("/completions", prompt="count to 100").json()
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 16)
    nothing = demo_server.post("/completions", prompt="Hello", echo=True, max_tokens=0).json()
    assert (nothing["choices"][0]["text"], nothing["choices"][0]["finish_reason"]) == ("Hello", "length")
    assert nothing["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_choices_are_in_the_order_of_prompts(demo_server: Server, stream: bool) -> None:
    asked = {"prompt": ["count to 2", "count to 3"], "n": 2, "max_tokens": 30, "echo": True, "stream": stream}
    texts = _texts(demo_server.post("/completions", **asked), stream)
    assert texts == {0: "count to 2 1 2", 1: "count to 2 1 2", 2: "count to 3 1 2 3", 3: "count to 3 1 2 3"}


def _choices(answer: httpx.Response, stream: bool) -> list[Any]:
    parts = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")] if stream else [answer.text]
    return [choice for part in parts for choice in json.loads(part)["choices"]]


def _texts(answer: httpx.Response, stream: bool) -> dict[int, str]:
    texts: dict[int, str] = {}
    for choice in _choices(answer, stream):
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return dict(sorted(texts.items()))


def test_token_ids_are_a_prompt_too(demo_server: Server) -> None:
    prompt = [[5420, 316, 220, 20]]  # count to 5
    tokens = demo_server.post("/completions", prompt=prompt, max_tokens=30, echo=True).json()
    assert tokens["choices"][0]["text"] == f"count to 5{COUNTED}"
    assert tokens["usage"]["prompt_tokens"] == 4


@pytest.mark.parametrize(("stop", "text", "reason"), [("4", " 1 2 3 ", "4"), (["9", "3 4"], " 1 2 ", "3 4")])
def test_a_stop_string_ends_a_text_in_front_of_it(demo_server: Server, stop: object, text: str, reason: str) -> None:
    for stream in (False, True):
        answer = demo_server.post("/completions", prompt="count to 5", max_tokens=30, stop=stop, stream=stream)
        assert _texts(answer, stream) == {0: text}
    choice = demo_server.post("/completions", prompt="count to 5", max_tokens=30, stop=stop).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", reason)


def test_a_conversation_in_the_models_own_signs_is_answered_in_them(demo_server: Server) -> None:
    """Special tokens that a prompt spells out are such; those that the model samples are no text."""
    prompt = "<|start|>user<|message|>count to 5<|end|><|start|>assistant<|channel|>final<|message|>"
    choice = demo_server.post("/completions", prompt=prompt, max_tokens=60).json()["choices"][0]
    assert choice["text"].endswith("1 2 3 4 5")
    assert "<|" not in choice["text"]


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids_that_were_read_and_sampled(demo_server: Server, stream: bool) -> None:
    tokens = [5420, 316, 220, 20]
    answer = demo_server.post("/completions", prompt=tokens, max_tokens=30, return_token_ids=True, stream=stream)
    choices = _choices(answer, stream)
    assert [choice["prompt_token_ids"] for choice in choices if "prompt_token_ids" in choice] == [tokens]
    sampled = [token for choice in choices for token in choice["token_ids"]]
    assert COUNTED in decode_tokens(sampled)
    assert sampled[-1] == RETURN


def test_log_probabilities_of_the_prompt(server: Server) -> None:
    """A scripted engine makes them up."""
    answer = server.post("/completions", model="test-model", prompt=[5420, 316, 220], prompt_logprobs=2).json()
    first, second, third = answer["choices"][0]["prompt_logprobs"]
    assert first is None
    assert second["316"] == {"logprob": -0.25, "rank": 1, "decoded_token": " to"}
    assert list(third) == ["220", "219"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("sampled", [0, 1])
def test_log_probabilities_of_an_echo(server: Server, sampled: int, stream: bool) -> None:
    """As lm-eval asks: every token has an entry, also a special one, and the one that is sampled comes last."""
    asked = {"prompt": [[5420, START, 220], [5420, 316]], "echo": True, "logprobs": 1, "max_tokens": sampled}
    answer = server.post("/completions", model="test-model", **asked, stream=stream)
    choices = _choices(answer, stream)
    texts = _texts(answer, stream)
    for index, tokens in enumerate((["count", "<|start|>", " "], ["count", " to"])):
        told = [each["logprobs"] for each in choices if each["index"] == index and each["logprobs"]]
        entries = {name: [each for logprobs in told for each in logprobs[name]] for name in told[0]}
        more = ["<|channel|>"] * sampled
        assert entries["tokens"] == tokens + more
        assert entries["token_logprobs"] == [None, *[-0.25] * (len(tokens) + sampled - 1)]
        assert entries["top_logprobs"] == [None, *({token: -0.25} for token in [*tokens[1:], *more])]
        assert entries["text_offset"] == [len("".join(tokens[:place])) for place in range(len(tokens) + sampled)]
        assert texts[index] == "".join(tokens)
    if not stream:
        assert answer.json()["usage"]["completion_tokens"] == 2 * sampled


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "prompt"),
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": ["a"] * 129}, 400, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, 400, "n"),
        ({"prompt": "a", "suffix": "b"}, 400, "suffix"),
        ({"prompt": [1, 200_019]}, 400, "prompt"),
        ({"prompt": "a", "stop_token_ids": [-1]}, 400, "stop_token_ids"),
        ({"prompt": "a", "best_of": 2}, 400, "best_of"),
        ({"prompt": "a", "logit_bias": {"999999999": 1}}, 400, "logit_bias"),
        ({"prompt": "a", "prompt_logprobs": 1}, 400, "prompt_logprobs"),
        ({"prompt": "a", "prompt_logprobs": 1, "stream": True}, 400, "prompt_logprobs"),
        ({"prompt": "a", "kv_transfer_params": {"do_remote_decode": True}}, 400, "kv_transfer_params"),
        ({"prompt": "a", "logprobs": 1}, 400, "logprobs"),
        ({"prompt": "a", "logprobs": 1, "echo": True}, 400, "logprobs"),
        ({"prompt": "a", "stop": [""]}, 400, "stop[0]"),
        ({"prompt": "a", "stop": ["a"] * 5}, 400, "stop"),
        ({"prompt": "a", "stop": 1}, 400, "stop"),
        ({"prompt": "a", "max_tokens": -1}, 400, "max_tokens"),
        ({"prompt": "a", "temperature": 3}, 400, "temperature"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, 400, "stream_options"),
        ({"prompt": "a", "model": "hashing-256"}, 400, "model"),
        ({"prompt": [1] * 90_000, "model": "demo", "n": 2, "max_tokens": 1}, 200, None),
    ],
)
def test_what_is_refused(demo_server: Server, body: dict[str, Any], status: int, param: str | None) -> None:
    answer = demo_server.post("/completions", **body)
    assert answer.status_code == status, answer.text
    assert answer.json().get("error", {}).get("param") == param


async def test_whoever_leaves_a_stream_ends_its_generations(closed: ClosedServer) -> None:
    """A place of its key is free again, and so the engine works for nobody any more."""
    key = closed.new_key("--concurrent-responses", "1")
    asked = {"prompt": "count to 10000", "max_tokens": 100_000}
    async with httpx.AsyncClient(
        base_url=f"{closed.base_url}/", headers=bearer(key), verify=False, timeout=30
    ) as client:
        async with client.stream("POST", "completions", json={**asked, "stream": True}) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if line:
                    break
            refused = await client.post("completions", json={"prompt": "Hi"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
            assert refused.reason_phrase == "Too Many Requests"

        async def answered() -> bool:
            return (await client.post("completions", json={"prompt": "Hi"})).status_code == 200

        await eventually(answered)


async def test_whoever_leaves_before_the_first_word_frees_the_engine(tmp_path: Path) -> None:
    """Where one of three prompts waits for the engine, it generates for the other two."""
    with Server(tmp_path, script=main_script(tmp_path), journal=True, engine_max_running=2) as server:

        async def waits(count: int) -> bool:
            return bool((await ready(server))["engine_queued"] == count)

        async with http_client(server) as http:
            for stream in (False, True):
                marker = f"leaves early, {stream}"
                asked = {"prompt": [harmony(f"[silence] {marker}")] * 3, "stream": stream}
                asking = asyncio.create_task(http.post("/completions", json=asked))
                await eventually(lambda: waits(1))
                asking.cancel()
                await eventually(lambda: waits(0))
                await eventually(lambda: _aborted(server, marker) >= 2)  # noqa: B023 (it is waited for here)


def _aborted(server: Server, marker: str) -> int:
    return sum(marker in prompt for prompt in aborted_prompts(server))


async def test_whoever_leaves_before_the_first_word_frees_the_place_of_its_key(tmp_path: Path) -> None:
    with ClosedServer(tmp_path, script=main_script(tmp_path), model_name="m", auth="on") as server:
        key = server.new_key("--concurrent-responses", "1")
        async with httpx.AsyncClient(base_url=f"{server.base_url}/", headers=bearer(key), verify=False) as http:
            for stream in (False, True):
                asked = {"prompt": harmony("[silence]"), "stream": stream}
                with pytest.raises(httpx.ReadTimeout):
                    await http.post("completions", json=asked, timeout=httpx.Timeout(10, read=0.5))

                async def answered() -> bool:
                    return (await http.post("completions", json={"prompt": harmony("Hi")}, timeout=30)).is_success

                await eventually(answered)


def harmony(text: str, begin: str = "") -> str:
    """Return a prompt in the model's own signs, as the scripted engine knows its entries."""
    return f"<|start|>user<|message|>{text}<|end|><|start|>assistant{begin}"


def test_log_probabilities_in_the_older_shape(server: Server) -> None:
    prompt = harmony("[says 3]", "<|channel|>final<|message|>")
    choice = server.post("/completions", prompt=prompt, logprobs=2).json()["choices"][0]
    assert choice["text"] == "3"
    assert choice["logprobs"] == {
        "tokens": ["3"],
        "token_logprobs": [-0.25],
        "top_logprobs": [{"3": -0.25, "2": -1.25}],
        "text_offset": [0],
    }
    streamed = server.post("/completions", prompt=prompt, logprobs=0, stream=True).text
    assert '"token_logprobs":[-0.25]' in streamed


def test_an_engine_that_fails_later_is_told_in_the_stream(server: Server) -> None:
    assert server.post("/completions", prompt=harmony("[die]"), max_tokens=100).status_code == 503
    with sdk_of(server) as client, pytest.raises(openai.APIError, match="engine is away"):
        for _ in client.completions.create(model="test-model", prompt=harmony("[die]"), max_tokens=100, stream=True):
            pass
    text = server.post("/completions", prompt=harmony("[break]"), max_tokens=100, stream=True).text
    assert text.endswith("data: [DONE]\n\n")
    assert "scripted" not in text


def test_a_prompt_that_does_not_fit(server: Server) -> None:
    error = server.post("/completions", prompt=[1] * 4000).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert error["message"].endswith("Shorten 'prompt'.")
