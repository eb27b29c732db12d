"""`WholeAnswer`: an answer of vLLM that is not streamed, read as the one chunk that it is.

vLLM tells the log probabilities of a prompt, and the `kv_transfer_params` that the next engine needs, in such answers
alone (0.32: `serve_tokens_full_generator`, `request_output_to_completion_response`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from engine.backends.vllm.prompt_logprobs import RankedPrompt
from engine.backends.vllm.wire import FINISH_REASONS, AnswerReader, JsonObject, Wire, refusal_in, shown
from engine.errors import GenerationFailed
from engine.types import GenerationRequest, PromptLogprobs, TokenChunk

MAX_ANSWER = 256 * 1024 * 1024  # bytes: 20 alternatives to each of 100,000 tokens of a prompt are 150 MB


def is_whole(request: GenerationRequest) -> bool:
    """Whether a generation is asked for in one answer. One that reads another engine's caches need not wait for it."""
    reads_caches = (request.kv_transfer_params or {}).get("do_remote_prefill")
    moves_caches = bool(request.kv_transfer_params) and not reads_caches
    return request.sampling.prompt_logprobs is not None or moves_caches


class WholeAnswer(AnswerReader):
    """Collects the bytes of one answer."""

    def __init__(self, wire: Wire, prompt: Sequence[int], *, top_logprobs: int | None = None) -> None:
        self._wire = wire
        self._prompt = prompt
        self._top_logprobs = top_logprobs
        self._parts: list[bytes] = []
        self._bytes = 0
        self._last: TokenChunk | None = None

    @property
    def finished(self) -> bool:
        """Whether it has come to its end."""
        return self._last is not None

    def feed(self, data: bytes) -> Iterator[TokenChunk]:
        """Keep `data`; there is no chunk before the end. Raises `GenerationFailed` for more than vLLM would send."""
        self._parts.append(data)
        self._bytes += len(data)
        if self._bytes > MAX_ANSWER:
            raise GenerationFailed(f"vLLM sent an answer of more than {MAX_ANSWER} bytes.")
        return iter(())

    def end(self) -> bool:
        """Read what has come, which takes long where it is. Raises `Refusal` for an error, `GenerationFailed` for what
        no vLLM says.
        """
        content = b"".join(self._parts)
        self._parts = []
        try:
            self._last = self._read(orjson.loads(content))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise GenerationFailed(f"vLLM sent an answer that cannot be read: {shown(content)}") from error
        return True

    def last(self) -> TokenChunk:
        """Return all of it."""
        assert self._last is not None, "asked for before it was there"
        return self._last

    def _read(self, message: JsonObject) -> TokenChunk:
        if "error" in message:
            raise refusal_in(message)
        choice = message["choices"][0]
        token_ids = choice["token_ids"]
        if not isinstance(token_ids, list):
            raise GenerationFailed("vLLM sent text and no token ids: it knows no return_token_ids.")
        usage = message.get("usage") or {}
        logprobs = None if self._top_logprobs is None else self._wire.logprobs(choice, self._top_logprobs)
        return TokenChunk(
            token_ids=token_ids,
            finish_reason=FINISH_REASONS[choice["finish_reason"]],
            cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
            logprobs=logprobs,
            prompt_logprobs=self._of_prompt(message.get("prompt_logprobs") or choice.get("prompt_logprobs")),
            kv_transfer_params=message.get("kv_transfer_params"),
        )

    def _of_prompt(self, places: Sequence[Mapping[str, Any] | None] | None) -> PromptLogprobs | None:
        if places is None:
            return None
        return list(RankedPrompt(self._prompt, places, _entries))


def _entries(place: Mapping[str, Any]) -> Iterator[tuple[int, float | None, int | None]]:
    for token, entry in place.items():
        yield int(token), entry["logprob"], entry.get("rank")
