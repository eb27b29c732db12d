"""The example in the docstring of `protocol.prompt.chain` is what the code does."""

import pytest

from engine.formats.base import MessageKind, RenderedMessage, as_tokens
from responses_app.protocol.prompt.chain import ChainLink, new_link

LINKS = ("u10 a30 c15", "o12 a20 f25", "u8 a40 f5", "u9 a10 f6")
FORMS = [(55, 25, False, False), (57, 37, False, True), (53, 13, True, True), (25, 15, True, True)]
PROMPTS = [55, 112, 115, 100]


def chain(links: tuple[str, ...]) -> ChainLink:
    """Make a chain of messages that are written as kind and number of tokens."""
    link: ChainLink | None = None
    for number, words in enumerate(links):
        messages = [RenderedMessage(MessageKind(word[0]), as_tokens(range(int(word[1:])))) for word in words.split()]
        link = new_link(link, response_id=f"resp_{number}", started_on="2026-11-20", messages=messages)
    assert link is not None
    return link


@pytest.mark.parametrize("length", range(1, 5))
def test_the_example(length: int) -> None:
    link = chain(LINKS[:length])
    own = link.own
    assert (len(own.tokens), len(link.settled), own.settles, own.ends_final) == FORMS[length - 1]
    assert len(link.prompt_tokens()) == PROMPTS[length - 1]
