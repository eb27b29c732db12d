"""Whose the messages of a prompt are, as its tokens say it.

    <|im_start|>user⏎Hi<|im_end|>⏎<|im_start|>assistant⏎
    └ user                       └ assistant

A message begins with a *sign*, a token that no text has. Some signs say by themselves whose it is, behind others
stands a name. So nothing has to be kept beside the tokens.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise

from engine.formats.base import HEADER, Begins, Role, Tokens


def messages_in(
    tokens: "Tokens[int]", signs: Mapping[int, Role | None], named: Callable[["Tokens[int]"], Role]
) -> list[Begins]:
    """Return where messages begin among tokens, in order.

    `signs` say whose a message is that begins with them, None where `named` reads it from what stands behind the sign.
    """
    places = [place for place, token in enumerate(tokens) if token in signs]
    found: list[Begins] = []
    for place, following in pairwise((*places, len(tokens))):
        role = signs[tokens[place]]
        found.append((place, named(tokens[place + 1 : min(following, place + HEADER)]) if role is None else role))
    return found
