"""Where links to the pages of roll-outs lead."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from django.urls import reverse

from responses_app.models.rollouts import Rollout


@dataclass(frozen=True, slots=True)
class Places:
    """The addresses of roll-outs. Members of the staff see all projects, so their links say which one they mean."""

    is_staff: bool

    def rollout(self, rollout: Rollout, **query: object) -> str:
        """Return the address of a roll-out's page."""
        return self._with(reverse("watch-rollout", args=(rollout.name,)), rollout.project, query)

    def group(self, rollout: Rollout, **query: object) -> str:
        """Return the address of the table of a roll-out's group."""
        return self._with(reverse("watch-rollouts"), rollout.project, {"group": rollout.group, **query})

    def _with(self, url: str, project: str, query: Mapping[str, object]) -> str:
        named = {name: value for name, value in query.items() if value is not None}
        if self.is_staff:
            named = {"project": project, **named}
        return f"{url}?{urlencode(named)}" if named else url
