"""What is served beside the Responses API, on a real vLLM, in daphne's process and in one of its own: OpenAI's SDK.

Only this finds log probabilities and prompts of a real vLLM that these APIs tell wrongly.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from engine.formats.harmony.encoding import decode_tokens
from tests.kit.chats import put_together, sent
from tests.kit.sdk import MODEL, WEATHER, sdk_of
from tests.kit.server import Server
from tests.system.vllm.engines import full_blocks
from tests.system.vllm.server import API_KEY, MAX_MODEL_LEN, SERVED_MODEL, VllmServer
from tests.system.vllm.transcripts import NUMBERS, completion, prompt

TOOL: Any = {"type": "function", "function": {name: value for name, value in WEATHER.items() if name != "type"}}
BEGUN = "final"  # what is text of the beginning of a raw completion that is an answer
WEATHER_OF_TWO = "the weather of Paris and Rome"


def asked(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def likelihood(choice: dict[str, Any]) -> list[Any]:
    """Return what a choice says of its text and of how likely its tokens and the alternatives to them are.

    This model finds all tokens nearly as likely: which come first, and the last digits, depend on what is computed
    together. So alternatives have no names here.
    """
    told = choice["logprobs"]
    alternatives = [sorted(each.values()) if each else None for each in told["top_logprobs"]]
    named = [token in each if each else None for token, each in zip(told["tokens"], told["top_logprobs"], strict=True)]
    return [choice["text"], choice["finish_reason"], told["tokens"], told["token_logprobs"], alternatives, named]


def near(expected: Any) -> Any:
    if isinstance(expected, list):
        return [near(each) for each in expected]
    return pytest.approx(expected, abs=1e-3) if isinstance(expected, float) else expected


class TestChat:
    def test_a_stream_is_the_completion_in_chunks(self, client: OpenAI) -> None:
        fields: Any = {"model": MODEL, "messages": asked("say long"), "logprobs": True, "top_logprobs": 2}
        fields["max_completion_tokens"] = 40
        raw = client.chat.completions.with_raw_response.create(**fields)
        whole = ChatCompletion.model_validate(json.loads(raw.text), strict=True)
        stream: Any = {"stream": True, "stream_options": {"include_usage": True}}
        with client.chat.completions.with_streaming_response.create(**fields, **stream) as streamed:
            *parts, last = sent(streamed.read())
        for part in parts:
            ChatCompletionChunk.model_validate(part, strict=True)
        together: Any = put_together(parts)
        (choice,) = whole.choices
        assert together["message"]["content"] == choice.message.content
        assert NUMBERS.startswith(str(choice.message.content))
        assert together["finish_reason"] == choice.finish_reason == "length"
        assert choice.logprobs is not None
        entries = choice.logprobs.content or []
        assert b"".join(bytes(each.bytes or ()) for each in entries).decode() == choice.message.content
        assert all(each.logprob <= 0 and 1 <= len(each.top_logprobs) <= 2 for each in entries)
        assert [each["token"] for each in together["logprobs"]] == [each.token for each in entries]
        assert whole.usage is not None
        assert last["usage"]["completion_tokens"] == whole.usage.completion_tokens
        assert last["usage"]["prompt_tokens_details"]["cached_tokens"] >= full_blocks(whole.usage.prompt_tokens)

    def test_two_choices_and_a_stop_string(self, client: OpenAI) -> None:
        completion = client.chat.completions.create(model=MODEL, messages=asked("say short"), n=2, stop=" you")
        assert [(each.index, each.message.content) for each in completion.choices] == [(0, "Hello"), (1, "Hello")]
        assert completion.usage is not None
        assert completion.usage.completion_tokens > 4

    def test_a_tool_loop_computes_no_token_twice(self, client: OpenAI) -> None:
        messages, earlier = asked(WEATHER_OF_TWO), 0
        while True:
            completion = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
            usage, message = completion.usage, completion.choices[0].message
            assert usage is not None
            assert usage.prompt_tokens_details is not None
            assert (usage.prompt_tokens_details.cached_tokens or 0) >= full_blocks(earlier)
            if not message.tool_calls:
                break
            earlier = usage.total_tokens
            messages.append(message.model_dump(include={"role", "tool_calls"}, exclude_none=True))
            for call in message.tool_calls:
                assert call.type == "function"
                city = json.loads(call.function.arguments)["city"]
                messages.append({"role": "tool", "tool_call_id": call.id, "content": f"18 °C in {city}"})
        assert message.content == "Paris and Rome have 18 °C."
        assert len(messages) == 5


class TestCompletions:
    def test_tokens_and_their_text_are_completed_alike(self, client: OpenAI) -> None:
        tokens = prompt("say short")
        text = decode_tokens(tokens)
        fields: Any = {"model": MODEL, "max_tokens": 20}
        whole = client.completions.create(**fields, prompt=[text, text], n=2, echo=True)
        by_tokens = client.completions.create(**fields, prompt=tokens, logprobs=2)
        assert [each.text for each in whole.choices] == [f"{text}{BEGUN}Hello you"] * 4
        (choice,) = by_tokens.choices
        assert (choice.text, choice.finish_reason) == (f"{BEGUN}Hello you", "stop")
        assert choice.logprobs is not None
        assert choice.logprobs.tokens == ["final", "Hello", " you"]
        assert choice.logprobs.text_offset == [0, 5, 10]
        # As at OpenAI and vLLM: the sampled token is told even where it is none of the two likeliest.
        assert all(1 <= len(each) <= 3 for each in choice.logprobs.top_logprobs or ())
        assert whole.usage is not None
        assert whole.usage.prompt_tokens == 2 * len(tokens)

    def test_what_the_engine_tells_of_its_work(self, client: OpenAI) -> None:
        tokens = prompt("say short")
        more = {"prompt_logprobs": 1, "return_token_ids": True}
        whole = client.completions.create(model=MODEL, prompt=tokens, max_tokens=20, extra_body=more)
        choice = whole.choices[0].model_dump()
        assert choice["prompt_token_ids"] == tokens
        assert choice["token_ids"] == completion("say short")
        first, *places = choice["prompt_logprobs"]
        assert first is None
        assert [next(iter(place)) for place in places] == list(map(str, tokens[1:]))
        assert all(each["logprob"] <= 0 and each["rank"] >= 1 for place in places for each in place.values())
        assert places[2][str(tokens[3])]["decoded_token"] == decode_tokens(tokens[3:4])

    @pytest.mark.parametrize("front", ["front_of_server"], indirect=True)
    @pytest.mark.parametrize("more", [{"max_tokens": 0}, {"max_tokens": 1}, {"max_tokens": 3, "logprobs": 0}])
    def test_how_likely_a_prompt_is_as_vllm_says_it(
        self, front: Server, vllm_server: VllmServer, more: dict[str, int]
    ) -> None:
        """What lm-eval's `loglikelihood` asks: a batch of contexts with their continuations, as token ids."""
        prompts = [prompt("say short"), prompt("say short, and then some")]
        fields = {"prompt": prompts, "echo": True, "logprobs": 1, "temperature": 0, "seed": 1234, **more}
        asked = {"model": SERVED_MODEL, **fields}
        with httpx.Client(headers={"Authorization": f"Bearer {API_KEY}"}, timeout=60) as http:
            own = http.post(f"{vllm_server.url}/v1/completions", json=asked).text
        # The tokenizer of this vLLM has a byte before its special tokens, which is not a character.
        expected = [near(likelihood(choice)) for choice in json.loads(own.replace("\ufffd", ""))["choices"]]
        answer = front.post("/completions", model=MODEL, **fields).json()
        assert [likelihood(choice) for choice in answer["choices"]] == expected
        for tokens, choice in zip(prompts, answer["choices"], strict=True):
            told = choice["logprobs"]
            assert len(told["tokens"]) == len(tokens) + more["max_tokens"]
            assert told["text_offset"][: len(tokens)] == [
                len(decode_tokens(tokens[:place])) for place in range(len(tokens))
            ]
        assert answer["usage"]["completion_tokens"] == 2 * more["max_tokens"]

    def test_how_likely_a_prompt_is(self, client: OpenAI) -> None:
        tokens = prompt("say short")
        fields: Any = {"model": MODEL, "prompt": tokens, "max_tokens": 1, "echo": True, "logprobs": 1}
        choice = client.completions.create(**fields, extra_body={"prompt_logprobs": 1}).choices[0].model_dump()
        first, *others = choice["logprobs"]["token_logprobs"]
        assert first is None
        assert len(others) == len(tokens)
        places = choice["prompt_logprobs"][1:]
        assert others[:-1] == [place[str(token)]["logprob"] for token, place in zip(tokens[1:], places, strict=True)]

    def test_a_stream_says_what_was_cached(self, client: OpenAI) -> None:
        tokens = prompt("say long " + "and nothing else " * 20)
        fields: Any = {"model": MODEL, "prompt": tokens, "max_tokens": 60}
        whole = client.completions.create(**fields)
        *parts, last = client.completions.create(**fields, stream=True, stream_options={"include_usage": True})
        assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
        assert [part.choices[0].finish_reason for part in parts][-1] == whole.choices[0].finish_reason == "length"
        assert isinstance(last, Completion)
        assert last.usage is not None
        assert last.usage.prompt_tokens_details is not None
        assert (last.usage.prompt_tokens_details.cached_tokens or 0) >= full_blocks(len(tokens))


def test_decisions(client: OpenAI) -> None:
    """The model is made to say a label; how likely that was is what vLLM says."""
    teams: Any = [{"value": "billing"}, {"value": "technical", "description": "something does not work"}]
    levels: Any = [{"label": "can wait"}, {"label": "now"}]
    decision = client.decisions.create(
        model=MODEL,
        input="My card was charged twice. " * 20,
        questions=[
            {"type": "predicate", "name": "angry", "instructions": "Decide: yes."},
            {"type": "choice", "instructions": "Decide: two.", "choices": teams},
            {"type": "score", "instructions": "Decide: two.", "levels": levels},
            {"type": "predicate", "instructions": "Decide: perhaps."},
        ],
    )
    angry, team, score, refused = decision.answers
    assert (angry.type, angry.name, angry.probability) == ("predicate", "angry", 1.0)
    assert (team.type, team.choice) == ("choice", "technical")
    assert 0 < team.confidence < 1
    assert (score.type, score.score) == ("score", 1.0)
    assert refused.type == "refusal"
    assert decision.usage.output_tokens == 4
    assert decision.usage.input_tokens > 4 * 100


class TestFamilies:
    """What is asked of models that are not gpt-oss, of the two that `test_chat_families` starts."""

    @pytest.fixture
    def client(self, family_front: Server) -> Iterator[OpenAI]:
        with sdk_of(family_front) as client:
            yield client

    def test_a_prompt_that_is_text(self, client: OpenAI, family_front: Server) -> None:
        thinks = family_front.environ["ENGINE"] == "vllm-server"
        text = "Grüße! Say hello."
        by_text = client.completions.create(model=MODEL, prompt=[text, text], max_tokens=200, echo=True)
        said = by_text.choices[0].text.removeprefix(text)
        assert [each.text for each in by_text.choices] == [text + said] * 2
        assert (said.endswith("Hello world"), said.startswith("<think>")) == (True, thinks)
        by_tokens = client.completions.create(model=MODEL, prompt=list(text.encode()), max_tokens=200)
        assert by_tokens.choices[0].text == said
        assert by_text.usage is not None
        assert by_text.usage.prompt_tokens <= 2 * len(text.encode())

    def test_decisions(self, client: OpenAI) -> None:
        ten: Any = [{"value": str(number)} for number in range(12)]
        decision = client.decisions.create(
            model=MODEL,
            input="My card was charged twice.",
            questions=[
                {"type": "predicate", "instructions": "Decide: yes."},
                {"type": "choice", "instructions": "Decide: ten.", "choices": ten},
                {"type": "score", "instructions": "Decide: two.", "levels": [{"label": "low"}, {"label": "high"}]},
            ],
        )
        sure, tenth, high = decision.answers
        assert (sure.type, tenth.type, high.type) == ("predicate", "choice", "score")
        assert sure.probability > 0
        assert max(tenth.probabilities, key=lambda each: each.probability).value == tenth.choice
        assert next(each.probability for each in tenth.probabilities if each.value == "9") > 0
        assert high.probabilities[1].probability > 0
        assert decision.usage.output_tokens == 3


def test_models(client: OpenAI, front: Server) -> None:
    (model,) = client.models.list().data
    described = client.models.retrieve(MODEL).model_dump()
    assert described == model.model_dump()
    assert (described["id"], described["max_model_len"]) == (MODEL, MAX_MODEL_LEN)
    assert described["capabilities"] == ["generate", "logprobs", "structured_outputs"]
    assert "/v1/decisions" in described["endpoints"]
