"""Projects, `/v1/organization/projects`. One that is archived stays so: its keys are revoked, its data is kept."""

from functools import partial
from typing import Literal

from typing_extensions import TypedDict

from responses_app.protocol.fields import validate
from responses_app.protocol.organization import NewProject, ProjectChanges, parse_include_archived, project_not_found
from responses_app.protocol.requests.pages import page_of
from responses_app.stores.organization import ProjectRecord
from responses_app.web.endpoint import PAGED, Parameter
from responses_app.web.http import ApiRequest, or_raise, read_json
from responses_app.web.organization import PROJECT, PROJECTS, found_project, organization, page_asked, who
from responses_app.wiring.site import get_site


class Project(TypedDict):
    """A project of the organization."""

    id: str
    object: Literal["organization.project"]
    name: str
    created_at: int
    archived_at: int | None
    status: Literal["active", "archived"]


class ProjectList(TypedDict):
    """A part of a list of projects. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[Project]
    first_id: str
    last_id: str
    has_more: bool


async def _create(request: ApiRequest) -> Project:
    site = get_site()
    fields = await read_json(request, partial(validate, NewProject), site.reader)
    return _shown(await site.organization.create_project(fields.name, by=who(request)))


async def _list(request: ApiRequest) -> ProjectList:
    page, part = page_asked(request)
    rows = await get_site().organization.projects(part, archived=parse_include_archived(request.query))
    return page_of(rows, page, _shown)


async def _get(request: ApiRequest, project_id: str) -> Project:
    return _shown(await found_project(project_id))


async def _update(request: ApiRequest, project_id: str) -> Project:
    site = get_site()
    project = await found_project(project_id)  # before the body is judged
    fields = await read_json(request, partial(validate, ProjectChanges), site.reader)
    if fields.name is None:
        return _shown(project)
    renamed = await site.organization.rename_project(project_id, fields.name, by=who(request))
    return _shown(or_raise(renamed, project_not_found(project_id)))


async def _archive(request: ApiRequest, project_id: str) -> Project:
    archived = await get_site().organization.archive_project(project_id, by=who(request))
    return _shown(or_raise(archived, project_not_found(project_id)))


def _shown(project: ProjectRecord) -> Project:
    return {
        "id": project.id,
        "object": "organization.project",
        "name": project.name,
        "created_at": project.created_at,
        "archived_at": project.archived_at,
        "status": "active" if project.archived_at is None else "archived",
    }


_INCLUDE_ARCHIVED = Parameter(
    "include_archived", "Whether archived projects are listed, too.", {"type": "boolean", "default": False}
)

ENDPOINTS = (
    organization("GET", PROJECTS, _list, "list-projects", "List projects", takes=(*PAGED, _INCLUDE_ARCHIVED)),
    organization("POST", PROJECTS, _create, "create-project", "Create a project", body=NewProject),
    organization("GET", PROJECT, _get, "retrieve-project", "Retrieve a project"),
    organization("POST", PROJECT, _update, "modify-project", "Rename a project", body=ProjectChanges),
    organization("POST", f"{PROJECT}/archive", _archive, "archive-project", "Archive a project for good"),
)
