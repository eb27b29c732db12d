"""`Retentions`: how long each project keeps what it stores, as this process knows it (see `protocol.retention`).

`runs.retention` reads it again every second, so a change holds on every worker within 2 s. Stores ask what is past its
time; whoever is about to keep something asks whether its project keeps anything.
"""

from collections.abc import Callable, Mapping, Sequence

from responses_app.protocol.retention import FOR_EVER, NEVER, oldest


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
