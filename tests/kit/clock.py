"""A clock for what is handed one."""


class Clock:
    """A time that a test sets."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = float(now)

    def __call__(self) -> float:
        return self.now
