"""Transcripts of gpt-oss as models mangle them, as many as there is time for; the suite has 300 of a fixed seed.

Only this finds a mangled transcript that is not among the 300.

They begin at FUZZ_SEED. What fails says its transcript.
"""

import time

from tests.kit.mangling import mangled_transcripts
from tests.system.fuzz.shares import MANGLED_SECONDS, SEED
from tests.unit.runs.test_run import whole_response

ROUND = 100


async def test_no_transcript_makes_an_error_or_loses_a_word() -> None:
    print(f"FUZZ_SEED={SEED}")  # pytest shows it where this fails
    deadline, seed, tried = time.monotonic() + MANGLED_SECONDS, SEED, 0
    while time.monotonic() < deadline:
        for mangled in mangled_transcripts(ROUND, seed=seed):
            await whole_response(mangled)
        seed, tried = seed + 1, tried + ROUND
    assert tried
