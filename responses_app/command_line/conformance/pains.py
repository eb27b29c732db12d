"""What users of self-hosted servers report again and again: each with the checks that would notice it.

A check names its pain by the key. What no check can see from outside says why.
"""

from collections.abc import Collection
from dataclasses import dataclass

from responses_app.command_line.conformance.asking.verdicts import Verdict


@dataclass(frozen=True, slots=True)
class Pain:
    """Something that users report."""

    text: str
    unseen: str = ""  # why no check can see it; "" where one can


PAINS = {
    "harmony-parser": Pain("the Harmony parser answers 500 or 503"),
    "header-tokens": Pain("unexpected tokens in a header end the request"),
    "malformed-calls": Pain("malformed calls of gpt-oss"),
    "second-turn": Pain("the second turn fails"),
    "state-in-dicts": Pain("state is kept in dicts of one process"),
    "parent-while-streaming": Pain("previous_response_id is lost while streaming"),
    "no-websocket": Pain("no WebSocket, so Codex retries for 5 to 10 seconds"),
    "namespaces": Pain("namespaces break gateways"),
    "other-tools": Pain("tools that are not functions are refused"),
    "apply-patch": Pain("apply_patch is absent on other models"),
    "changing-header": Pain("a changing header empties the prefix cache"),
    "dropped-reasoning": Pain("dropped reasoning empties the prefix cache"),
    "swallowed-errors": Pain("errors in the middle of a stream are swallowed"),
    "unusable-state": Pain("user interfaces cannot use the server's state"),
    "paid-sign-on": Pain("single sign-on is behind a paywall", unseen="an answer of the API does not show it"),
}


def verdict_of(verdicts: Collection[Verdict]) -> Verdict | None:
    """Return what the checks of a pain say together; None without any.

    One that fails is enough; what is absent counts only where nothing could be tried.
    """
    order = (Verdict.FAILED, Verdict.PASSED, Verdict.ABSENT, Verdict.SKIPPED)
    return min(verdicts, key=order.index, default=None)
