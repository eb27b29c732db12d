"""How long a project keeps what it stores, as its operator has set it: never, some hours, for ever, or as the server's
settings say. It is a number of hours where it is kept; `NEVER` and `FOR_EVER` are two of them, None is the server's.

`Retentions` is what this process knows of all projects. `runs.retention` reads it again every second, so a change holds
on every worker within 2 s. Stores ask what is past its time; whoever is about to keep something asks whether its
project keeps anything.
"""

from collections.abc import Callable, Mapping, Sequence

from responses_app.protocol.errors import ApiError, invalid_request

NEVER = 0
FOR_EVER = -1
MAX_HOURS = 87_600  # ten years
HOUR = 3600.0  # seconds

AS_SERVER = "server"  # how people write None
_WORDS = {AS_SERVER: None, "never": NEVER, "forever": FOR_EVER}


def parse_retention(text: str) -> int | None:
    """Return the hours that a word or a number of hours means. Raises `ValueError`, with a sentence."""
    if text in _WORDS:
        return _WORDS[text]
    if text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_HOURS)) and 1 <= int(text) <= MAX_HOURS:
        return int(text)
    words = ", ".join(f"'{word}'" for word in _WORDS)
    raise ValueError(f"{text[:80]!r} is not one of {words}, or a whole number of hours from 1 to {MAX_HOURS:,}")


def written(hours: int | None) -> str:
    """Return the text that `parse_retention` reads as these hours."""
    return next((word for word, value in _WORDS.items() if value == hours), str(hours))


def kept(hours: int) -> str:
    """Return how people read these hours."""
    return written(hours) if hours <= NEVER else f"{hours:,} hours"


def oldest(hours: int | None, now: float, *, ttl: float = 0.0) -> float:
    """Return the time at or before which a thing was made that is past its time; below 0 for none.

    `ttl` is what the server's settings say of such things, in seconds; 0 is for ever. The shorter one counts.
    """
    if hours == FOR_EVER or (hours is None and not ttl):
        return -1.0  # before 1970, so that everything is younger
    own = now - ttl if ttl else -1.0
    return own if hours is None else max(own, now - hours * HOUR)


def keeps_nothing(what: str, instead: str, *, param: str | None = None) -> ApiError:
    """Something cannot be had in a project that keeps nothing (400). `what` is a sentence, and so is `instead`."""
    return invalid_request(
        f"{what}, and this project keeps nothing (its retention is 'never'). {instead}",
        param=param,
        code="retention_never",
    )


class Retentions:
    """The projects that have a retention of their own."""

    def __init__(self) -> None:
        self._hours: Mapping[str, int] = {}  # by project
        self.known = False  # whether the database was heard; before that nobody knows of any project

    def learn(self, hours: Mapping[str, int]) -> None:
        """Take what the database says: of all projects that have a retention of their own."""
        self._hours, self.known = dict(hours), True

    def keeps_nothing(self, project: str) -> bool:
        """Whether nothing of a project is kept anywhere."""
        return self._hours.get(project) == NEVER

    def oldest(self, project: str, now: float, *, ttl: float = 0.0) -> float:
        """Return when, at the latest, a thing of a project was made that is past its time; below 0 for none.

        `ttl` is what the server's settings say of such things, in seconds; 0 is for ever.
        """
        return oldest(self._hours.get(project), now, ttl=ttl)

    def past(self, project: str, made_at: float, *, now: Callable[[], float]) -> bool:
        """Whether what a project made at a time is past its retention. Containers of a project that keeps nothing are
        made for one response each, and go with it: they are never past their time.
        """
        return not self.keeps_nothing(project) and made_at <= self.oldest(project, now())

    @property
    def endless(self) -> Sequence[str]:
        """The projects that keep things for ever, whatever the server's settings say of their age."""
        return [project for project, hours in self._hours.items() if hours == FOR_EVER]

    @property
    def bounded(self) -> Mapping[str, int]:
        """The hours of the projects that keep things for a while, or never."""
        return {project: hours for project, hours in self._hours.items() if hours >= NEVER}
