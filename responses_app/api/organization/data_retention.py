"""How long a project keeps what it stores, `…/projects/{project_id}/data_retention`.

OpenAI's types have no number of hours: `retention_hours`, a field of this server's own, has it, beside the type `none`.
"""

from functools import partial
from typing import Literal

from typing_extensions import TypedDict

from responses_app.protocol.fields import validate
from responses_app.protocol.organization import NewRetention, hours_of, project_not_found
from responses_app.protocol.retention import FOR_EVER, NEVER
from responses_app.web.http import ApiRequest, or_raise, read_json
from responses_app.web.organization import PROJECT, found_project, organization, who
from responses_app.wiring.site import get_site


class ProjectDataRetention(TypedDict):
    """How long a project keeps what it stores."""

    object: Literal["project.data_retention"]
    # As the server's settings say, for ever or for some hours, or not at all.
    type: Literal["organization_default", "none", "zero_data_retention"]
    retention_hours: int | None  # null: there is no such number


async def _get(request: ApiRequest, project_id: str) -> ProjectDataRetention:
    return _shown((await found_project(project_id)).retention_hours)


async def _update(request: ApiRequest, project_id: str) -> ProjectDataRetention:
    site = get_site()
    await found_project(project_id)  # before the body is judged
    fields = await read_json(request, partial(validate, NewRetention), site.reader)
    changed = await site.organization.retain(project_id, hours_of(fields), by=who(request))
    return _shown(or_raise(changed, project_not_found(project_id)).retention_hours)


def _shown(hours: int | None) -> ProjectDataRetention:
    return {
        "object": "project.data_retention",
        "type": "organization_default" if hours is None else "zero_data_retention" if hours == NEVER else "none",
        "retention_hours": None if hours in (FOR_EVER, NEVER) else hours,
    }


_PATH = f"{PROJECT}/data_retention"

ENDPOINTS = (
    organization(
        *("GET", _PATH, _get, "retrieve-project-data-retention", "Show how long a project keeps what it stores")
    ),
    organization(
        *("POST", _PATH, _update, "update-project-data-retention", "Set how long a project keeps what it stores"),
        body=NewRetention,
    ),
)
