"""How long each part of the fuzz has: FUZZ_SECONDS in all, 40 in the suite, 1200 with `make fuzz`; and its seed."""

import os
import random

SECONDS = float(os.environ.get("FUZZ_SECONDS", "40"))
SEED = int(os.environ.get("FUZZ_SEED") or random.SystemRandom().getrandbits(32))
HOSTILE_SECONDS = SECONDS * 0.4  # bodies, frames, headers and bytes; under both kinds of servers together
OPENAPI_SECONDS = SECONDS * 0.45
STORED_SECONDS = SECONDS * 0.1
MANGLED_SECONDS = SECONDS * 0.05
