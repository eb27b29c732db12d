"""Conversations and texts → prompts by the tokenizer of a model that vLLM loads in this process."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import EngineUnavailable, NotRendered
from engine.types import ChatPrompt


def load_template(tokenizer: str, options: Mapping[str, object]) -> Any:
    """Return the tokenizer of a folder, or of the hub, as vLLM makes it. Raises `EngineUnavailable`."""
    from vllm.tokenizers import get_tokenizer

    try:
        return get_tokenizer(tokenizer, trust_remote_code=bool(options.get("trust_remote_code")))
    except Exception as error:
        raise EngineUnavailable(
            f"The tokenizer {tokenizer} cannot be loaded: {type(error).__name__}: {error}"
        ) from error


def rendered_chat(tokenizer: Any, chat: ChatPrompt) -> Sequence[int]:
    """Return the prompt of a conversation. Raises `NotRendered` where the template refuses it."""
    try:
        prompt = tokenizer.apply_chat_template(
            [_with_objects(message) for message in chat.messages],
            tools=chat.tools or None,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **chat.template_kwargs,
        )
    except Exception as error:  # a template may raise anything
        raise NotRendered(f"{type(error).__name__}: {error}") from error
    return [int(token) for token in prompt]


def tokenized(tokenizer: Any, text: str) -> Sequence[int]:
    """Return a text as a whole prompt, with the tokens that its model begins every prompt with.

    Raises `NotRendered` for a text that cannot be tokenized.
    """
    try:
        return [int(token) for token in tokenizer.encode(text)]
    except Exception as error:  # as above: it may be of any library
        raise NotRendered(f"{type(error).__name__}: {error}") from error


def _with_objects(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message whose calls have their arguments as objects: templates want them so, as vLLM does it, too."""
    if "tool_calls" not in message:
        return dict(message)
    calls = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}
