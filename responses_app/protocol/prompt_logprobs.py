"""Log probabilities of a prompt as vLLM's servers write them: for each token an object, by token id.

[null, {"791": {"logprob": -2.5, "rank": 4, "decoded_token": "The"}, "32": {…}}, …]
"""

from collections.abc import Callable

from engine.types import PromptLogprobs
from responses_app.protocol.errors import JsonObject

MAX_PROMPT_LOGPROBS = 20  # alternatives to a token, as of what is sampled


def written_prompt(places: PromptLogprobs, token_bytes: Callable[[int], bytes]) -> list[JsonObject | None]:
    """Return what clients get. It takes 20 µs a place and more: off the event loop where there are many."""
    return [
        None
        if place is None
        else {
            str(each.token_id): {
                "logprob": each.logprob,
                "rank": each.rank,
                "decoded_token": token_bytes(each.token_id).decode(errors="replace"),
            }
            for each in place
        }
        for place in places
    ]
