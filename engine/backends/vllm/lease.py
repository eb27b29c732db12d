"""A place at a shared engine core, as the process that owns the core leases it to one that serves.

vLLM's engine core knows its front ends as numbered places, each with two ZMQ addresses. Which process has which place
is agreed upon over a Unix socket (`core_host` listens, `shared_core` connects), in lines:

    host → front end    one JSON object: a `Lease`, as soon as the core is loaded, or {"refused": why}
    front end → host    +ID    the core is about to get this request
                        -ID    it is over

The connection is the lease. The kernel closes it whatever ends either side. Where a front end's ends, the host frees
its place and has the core abort what it had running; where the host's ends, the core is gone.
"""

import base64
import json
from dataclasses import asdict, dataclass
from typing import Any

from engine.errors import EngineUnavailable

MAX_LINE_BYTES = 64 * 1024  # a lease has 1 KiB, a request's id 80 bytes
BEGAN, ENDED = b"+", b"-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A place among `places`, its two ZMQ addresses, and how vLLM's core introduces itself (`greeting`)."""

    place: int
    places: int
    input_address: str
    output_address: str
    greeting: bytes
    version: str  # vLLM's
    pid: int  # the host's

    def encode(self) -> bytes:
        """Return it as a line."""
        fields: dict[str, Any] = asdict(self) | {"greeting": base64.b64encode(self.greeting).decode()}
        return json.dumps(fields).encode() + b"\n"


def refusal(why: str) -> bytes:
    """Return the line of a host that gives no place."""
    return json.dumps({"refused": why}).encode() + b"\n"


def decode_lease(line: bytes) -> Lease:
    """Read what the host has answered. Raises `EngineUnavailable` where that is not a lease."""
    if not line.endswith(b"\n"):
        raise EngineUnavailable("The engine core ended before it was loaded.")
    fields = json.loads(line)
    if "refused" in fields:
        raise EngineUnavailable(f"The engine core takes no more workers: {fields['refused']}.")
    return Lease(**fields | {"greeting": base64.b64decode(fields["greeting"])})
