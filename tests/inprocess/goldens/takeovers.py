"""A response whose worker is gone, at each place of its log: what its readers see of both workers, as digests.

The undisturbed stream stands there whole; each cut has the SHA-256 of its stream, which is to be the same.
"""

import json
import re
from collections.abc import Sequence
from hashlib import sha256

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.response import turns as machine_turns
from responses_app.protocol.response.input_codec import decode, encode
from tests.kit.fakes import Site
from tests.unit.runs.test_takeover import CASES, TokenEngine, left_at, taken_over, undisturbed, unsealed


async def cuts() -> str:
    """Return every case, cut everywhere."""
    machine_turns.MIN_THOUGHT = 8
    return "\n".join([await _case(name) for name in CASES])


async def _case(name: str) -> str:
    turns, fields = CASES[name]
    accepted, events = await undisturbed(turns, fields)
    lines = [f"=== {name}", *_shown(events)]
    inputs = list(decode(accepted.log))
    for count in range(len(inputs)):
        site = Site(TokenEngine(turns), await left_at(accepted, encode(inputs[:count])), worker="heir")
        again = await (await taken_over(site, str(accepted.response["id"]))).to_the_end()
        lines.append(f"cut behind {count} of {len(inputs)}: {len(again)} events, {_digest(again)}")
        await site.registry.aclose(grace=5)
    return "\n".join([*lines, ""])


def _shown(events: Sequence[JsonObject]) -> list[str]:
    return [f"undisturbed: {len(events)} events, {_digest(events)}", *map(_line, events)]


def _line(event: JsonObject) -> str:
    return re.sub(r'("encrypted_content": ")[^"]+', r"\1<sealed>", json.dumps(event, ensure_ascii=False))


def _digest(events: Sequence[JsonObject]) -> str:
    return sha256(unsealed(events).encode()).hexdigest()[:16]
