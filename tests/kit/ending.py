"""How a program of ours that starts servers ends: with them, whatever ends it but SIGKILL.

The servers have sessions of their own, so no signal for a group of processes reaches them.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGTERM_STATUS = 128 + signal.SIGTERM


@contextmanager
def ended_cleanly() -> Iterator[None]:
    """Inside, SIGTERM is what Ctrl-C is: all that was entered is left, and then the program ends, without a traceback.

    Only the first one counts. A second one would cut the ends of the servers short.
    """
    came: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        if came:
            return
        came.append(number)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as for what a script has started with `&`
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)  # asyncio has its own way with that

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(SIGTERM_STATUS if came else 130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
