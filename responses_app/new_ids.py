"""`new_id`: makes the ids of this process of its clock and the system's randomness: ordered, and not to be guessed."""

import random
import time

from responses_app.protocol.ids import IdFactory

new_id = IdFactory(lambda: time.time_ns() // 1_000_000, random.SystemRandom().getrandbits)
