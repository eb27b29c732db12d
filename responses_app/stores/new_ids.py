"""How ids are made: of a clock and of the system's randomness. They are ordered, and not to be guessed."""

import random
from collections.abc import Callable

from responses_app.protocol.ids import IdFactory


def id_factory(now: Callable[[], float]) -> IdFactory:
    """Return what makes ids. `now` says the Unix time in seconds."""
    return IdFactory(lambda: int(now() * 1000), random.SystemRandom().getrandbits)
