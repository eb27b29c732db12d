"""The fields that every request has that generates a text: how it is sampled, and where it ends.

`engine.sampling` declares how; here stands what an API needs of it beside: where a text ends, and which of the names
are OpenAI's own.
"""

from typing import Annotated

from pydantic import Field

from engine.sampling import SAMPLED, TextSampling
from responses_app.protocol.fields import ClientModel
from responses_app.protocol.stop_strings import Stops

MAX_STOP_TOKENS = 64  # of one request
OF_COMPLETIONS = (  # those that OpenAI has in its older APIs
    *("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "logit_bias", "stop"),
)
OF_RESPONSES = ("temperature", "top_p")


class GenerationFields(ClientModel, TextSampling):
    """How a text is sampled, and where it ends."""

    stop: Stops | None = None
    stop_token_ids: Annotated[list[int] | None, Field(max_length=MAX_STOP_TOKENS)] = None


def not_openais(theirs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that OpenAI does not have in an API, where it has `theirs`."""
    return tuple(name for name in (*SAMPLED, "stop", "stop_token_ids") if name not in theirs)
