"""How commands end: the exit statuses, and the error that carries one sentence."""

FAILED = 1
USAGE = 2  # argparse's own
INTERRUPTED = 130  # what shells say of a program that Ctrl-C ended


class CommandFailed(Exception):
    """A command cannot go on. The text is for the person who typed it: what is wrong, and what to do."""

    def __init__(self, text: str, *, status: int = FAILED) -> None:
        super().__init__(text)
        self.status = status
