"""How long each part of the fuzz has: FUZZ_SECONDS in all, 40 in the suite, 1200 with `make fuzz`; and its seed.

The suite begins at the same seed each time, so that a change is not blamed for what another one did. `make fuzz` begins
at a new one, and finds what nobody has seen yet.
"""

import os
import random

SECONDS = float(os.environ.get("FUZZ_SECONDS", "40"))
_ASKED = os.environ.get("FUZZ_SEED") or (random.SystemRandom().getrandbits(32) if "FUZZ_SECONDS" in os.environ else 1)
SEED = int(_ASKED)
HOSTILE_SECONDS = SECONDS * 0.4  # bodies, frames, headers and bytes; under both kinds of servers together
OPENAPI_SECONDS = SECONDS * 0.45
STORED_SECONDS = SECONDS * 0.1
MANGLED_SECONDS = SECONDS * 0.05
