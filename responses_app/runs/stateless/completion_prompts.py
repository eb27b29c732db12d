"""The prompts of a completion as tokens. What is here blocks: as long as they are long, or an engine tokenizes them."""

import logging
from collections.abc import Sequence

from engine.errors import NotRendered
from engine.formats.base import as_tokens
from responses_app.protocol.errors import context_length_exceeded, invalid_request
from responses_app.protocol.prompt.long_texts import check_can_fit
from responses_app.protocol.stateless.completions import CompletionWanted
from responses_app.runs.plan.served import ServedModel
from responses_app.runs.planning.sampling import check_tokens

logger = logging.getLogger("respsite.runs")


def read_prompts(wanted: CompletionWanted, model: ServedModel, max_model_len: int) -> list[tuple[Sequence[int], str]]:
    """Return the tokens of each prompt, and what its completions begin with.

    Raises `ApiError`, and `EngineError` where who tokenizes is away.
    """
    prompts = []
    for prompt in wanted.prompts:
        check_can_fit(len(prompt) if isinstance(prompt, str) else 0, model.format, max_model_len)
        tokens = _tokens(prompt, model)
        if len(tokens) >= max_model_len:
            raise context_length_exceeded(len(tokens), max_model_len)
        prompts.append((tokens, _echo(prompt, tokens, model) if wanted.fields.echo else ""))
    return prompts


def _tokens(prompt: str | Sequence[int], model: ServedModel) -> Sequence[int]:
    if not isinstance(prompt, str):
        check_tokens(prompt, model.format, "prompt")
        return as_tokens(prompt)
    try:
        read = model.format.raw_prompt(prompt)
    except NotRendered as error:
        logger.warning("a prompt was not tokenized: %s", error)
        read = None
    if read is None:
        raise invalid_request(
            "Invalid value for 'prompt': this server cannot turn this text into tokens of this model. Send token ids.",
            param="prompt",
            code="invalid_value",
        )
    return read


def _echo(prompt: str | Sequence[int], tokens: Sequence[int], model: ServedModel) -> str:
    if isinstance(prompt, str):
        return prompt
    return b"".join(map(model.format.token_bytes, tokens)).decode(errors="replace")
