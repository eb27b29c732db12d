"""Messages that a client made of a thought: it shows the thought as if it were said, and gives both back.

GitHub's Copilot CLI does so with a turn that only thinks before it calls a tool. The model has not said it, and would
read another prompt from there on.
"""

from collections.abc import Container, Sequence

from responses_app.protocol.items.items import FunctionCall, InputItem, Message, PassedThrough, Reasoning, TextPart


def places_of_echoes(items: Sequence[InputItem | None], sampled: Container[str]) -> set[int]:
    """Return the places of messages that stand between a thought and a call, and say the thought word for word.

    `sampled` are the ids of items that the model is known to have said.
    """
    return {
        place + 1
        for place, (thought, said, call) in enumerate(zip(items, items[1:], items[2:], strict=False))
        if isinstance(thought, Reasoning)
        and isinstance(said, Message)
        and isinstance(call, FunctionCall | PassedThrough)
        and said.id not in sampled
        and _is_echo(said, thought)
    }


def _is_echo(said: Message, thought: Reasoning) -> bool:
    # What has tokens of its own was sampled.
    if said.role != "assistant" or said.exact is not None:
        return False
    text = _text(said.content)
    return bool(text) and text in (_text(thought.content or ()), _text(thought.summary))


def _text(parts: Sequence[object]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextPart))
