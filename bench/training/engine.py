"""`python -m bench.training.engine PORT FILE`: a vLLM server without a model, which writes down all its generations.

It answers as agents do: with a thought and a call of the tool `shell`, until a tool's output says `[done]`. What it
says depends on the response's id alone, so a turn that was cut goes on as it had begun, on any server. It samples some
words as the tokens of their letters, as models do now and then: who renders a text again gets other tokens.
"""

import asyncio
import json
import random
import re
import sys
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, TextIO

from engine.backends.simulated import turn_beginnings
from engine.formats.base import as_tokens
from engine.formats.harmony.encoding import decode_tokens, encode_harmony, encode_text
from engine.types import FinishReason, TokenChunk, TokenLogprob
from tests.kit.fake_vllm import Event, FakeVllm, _note_version, _Stream

CHUNK_TOKENS = 16
PAUSE = 0.02  # seconds before each chunk
THOUGHT, COMMAND, ANSWER = 24, 12, 16  # words
ODD = 0.1  # of the words are sampled letter by letter
DONE = "[done]"
LOOKED_AT = 60  # last tokens of a prompt, where `DONE` may stand
WORDS = (
    "file test line error module value import class return check fix path name read write open run build index "
    "table query user server client token batch cache store event state order total count first last next"
).split()
_RESPONSE = re.compile(r"[a-z]+_\w+?(?=[-.]|$)")


def logprob_of(token: int) -> float:
    """Return the log probability of a token, which only depends on it: with all bits of a float64."""
    return -((token * 2_654_435_761) % 2**32) / 2**32 * 9 - 0.001


def digest_of(tokens: Sequence[int]) -> str:
    """Return what stands for tokens in the file."""
    return blake2b(as_tokens(tokens).tobytes(), digest_size=16).hexdigest()


def response_of(request_id: str) -> str:
    """Return the id of the response that a generation is for."""
    match = _RESPONSE.match(request_id)
    return match.group() if match else request_id


class RecordingVllm(FakeVllm):
    """Speaks vLLM's wire; has the doors for trainers."""

    def __init__(self, port: int, file: TextIO) -> None:
        super().__init__({"say": "<|channel|>final<|message|>Yes.<|return|>"}, port=port, max_model_len=200_000)
        self._file = file

    async def _generations(self, stream: _Stream, prompt: list[int], sampling: dict[str, Any], event: Event) -> None:
        request_id = stream.asked.body["request_id"]
        if request_id.startswith(("respsite-", "grammar-")):  # it only finds out what the server can do
            await super()._generations(stream, prompt, sampling, event)
            return
        said, spans, sampled = turn_of(request_id, prompt)[: sampling["max_tokens"]], list[dict[str, Any]](), 0
        finish = "cut"
        try:
            async with self.doors.gate.generation() as name:
                while sampled < len(said):
                    await asyncio.sleep(PAUSE)
                    await self.doors.gate.passed(name)
                    chunk = _chunk(said, sampled)
                    _note_version(spans, self.doors.version, sampled, sampled + len(chunk.token_ids))
                    sampled += len(chunk.token_ids)
                    shown = event(chunk, prompt if not stream.asked.sent else None, sampling.get("logprobs"))
                    if chunk.finish_reason is not None:
                        shown["choices"][0]["weight_versions"] = spans
                    await stream.say(shown)
                    stream.asked.sent += 1
            finish = "stop"
        finally:
            self._note(request_id, prompt, said[:sampled], spans, finish)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": sampled, "prompt_tokens_details": None}
        await stream.say({"choices": [], "usage": usage})

    def _note(self, request_id: str, prompt: list[int], sampled: list[int], spans: object, finish: str) -> None:
        line = {
            "response": response_of(request_id),
            "prompt_tokens": len(prompt),
            "prompt": digest_of(prompt),
            "sampled": sampled,
            "weights": spans,
            "finish": finish,
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def turn_of(request_id: str, prompt: Sequence[int]) -> list[int]:
    """Return what is said to a prompt, without what the prompt has of it already: a turn that was cut goes on."""
    for begin in turn_beginnings(prompt):
        begun = list(prompt[begin:])
        turn = _turn(response_of(request_id), is_last=DONE in decode_tokens(prompt[max(0, begin - LOOKED_AT) : begin]))
        if turn[: len(begun)] == begun:
            return turn[len(begun) :]
    raise AssertionError("a prompt that ends with something else begins a turn")


def _turn(response_id: str, *, is_last: bool) -> list[int]:
    chance = random.Random(response_id)

    def said(count: int) -> list[int]:
        words = chance.choices(WORDS, k=count)
        return [token for word in words for token in _word(word, letters=chance.random() < ODD)]

    if is_last:
        return [*_literal("<|channel|>final<|message|>Done:"), *said(ANSWER), *_literal("<|return|>")]
    return [
        *_literal("<|channel|>analysis<|message|>I look:"),
        *said(THOUGHT),
        *_literal("<|end|><|start|>assistant<|channel|>commentary to=functions.shell <|constrain|>json<|message|>"),
        *_literal('{"cmd":"sed'),
        *said(COMMAND),
        *_literal('"}<|call|>'),
    ]


@cache
def _literal(text: str) -> tuple[int, ...]:
    return tuple(encode_harmony(text))


@cache
def _word(word: str, *, letters: bool) -> tuple[int, ...]:
    parts = [" ", *word] if letters else [f" {word}"]
    return tuple(token for part in parts for token in encode_text(part))


def _chunk(said: Sequence[int], begin: int) -> TokenChunk:
    tokens = said[begin : begin + CHUNK_TOKENS]
    return TokenChunk(
        token_ids=tokens,
        finish_reason=FinishReason.STOP if begin + CHUNK_TOKENS >= len(said) else None,
        logprobs=[TokenLogprob(token, logprob_of(token)) for token in tokens],
    )


async def _serve(port: int, file: Path) -> None:
    with file.open("a") as lines:
        async with RecordingVllm(port, lines):
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), Path(sys.argv[2])))
