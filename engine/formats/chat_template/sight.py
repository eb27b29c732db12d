"""How a family's chat template has a picture, as its model's files tell it.

In a prompt a picture is one token. The engine puts as many in its place as its model sees the picture as, which nobody
else knows. Templates have this token from a part of a message that is an image, and write others around it; here it
stands in the message's text instead, written in the same way, so that the template is given text alone, whoever
renders it, and no picture has to be there for that.

What else spells this token (a user's text, a tool's description) would be taken for a picture: it gets a character of
no width behind its first one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.formats.base import Body, Picture, parts_of
from engine.formats.chat_template.vocabulary import Vocabulary

AUTO, NONE = "auto", "none"  # beside the text itself, what an operator may say
_NO_WIDTH = "\N{ZERO WIDTH SPACE}"
# Fields of a model's config that name the token.
_FIELDS = ("image_token_id", "image_token_index", "media_placeholder_token_id")
# Families whose config names what their picture is expanded to, and not what stands in the prompt.
_OF_TYPE = {"gemma3": "<start_of_image>", "llama4": "<|image|>"}
# What templates write around the token: of Qwen from 2 on, of GLM, of Kimi.
_AROUND = (
    "<|vision_start|><|image_pad|><|vision_end|>",
    "<|begin_of_image|><|image|><|end_of_image|>",
    "<|media_start|>image<|media_content|><|media_pad|><|media_end|>",
)


@dataclass(frozen=True, slots=True)
class Sight:
    """How a template has a picture."""

    text: str  # all that it writes for one
    name: str  # of the token in it that the engine expands
    token: int  # its id

    def written(self, body: Body) -> str:
        """Return a body as text for the template."""
        return "".join(self.text if isinstance(part, Picture) else self.plain(part) for part in parts_of(body))

    def plain(self, text: str) -> str:
        """Return a text in which nothing is taken for a picture."""
        return text.replace(self.name, self.name[0] + _NO_WIDTH + self.name[1:]) if self.name in text else text


def sight_of(config: Mapping[str, Any], vocabulary: Vocabulary, named: str = AUTO) -> Sight | None:
    """Return how a model's template has a picture, None where the model does not see.

    `config` is the model's config.json, `named` what an operator says. Raises `ValueError` where that cannot be.
    """
    if named == NONE:
        return None
    ids = [config[field] for field in _FIELDS if isinstance(config.get(field), int)]
    known = [name for name, token in vocabulary.added.items() if token in ids[:1]]
    if named == AUTO:
        of_type = _OF_TYPE.get(str(config.get("model_type")))
        name = of_type or next(iter(known), "")
        if not isinstance(config.get("vision_config"), Mapping) or name not in vocabulary.added:
            return None
        # Its template writes what is around the token where all of that is in the vocabulary.
        text = next((each for each in _AROUND if name in each and _is_whole(each, vocabulary)), name)
        return Sight(text, name, vocabulary.added[name])
    within = [name for name in vocabulary.added if name in named]
    within = [name for name in within if name in known] or within
    if len(within) != 1:
        raise ValueError(
            f"{named!r} has {len(within)} tokens of the model's vocabulary in it, and not the one that stands for a "
            "picture"
        )
    return Sight(named, within[0], vocabulary.added[within[0]])


def _is_whole(text: str, vocabulary: Vocabulary) -> bool:
    # `<a><b>` → `a`, `b`: each sign of its own.
    return all(f"<{sign.partition('>')[0]}>" in vocabulary.added for sign in text.split("<")[1:])
