"""`/v1/skills`: skills of projects, and their versions. Times are Unix seconds."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Literal

from django.http.response import HttpResponseBase
from typing_extensions import TypedDict

from responses_app.kit.errors import StoreError
from responses_app.protocol import ids
from responses_app.protocol.api_keys import Area
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.fields import validate
from responses_app.protocol.files.files import files_full
from responses_app.protocol.files.skills import (
    LATEST,
    ChangedSkill,
    NewVersion,
    default_in_use,
    invalid_skill,
    parse_change,
    skill_not_found,
    skill_version_not_found,
    skills_full,
    version_number,
)
from responses_app.protocol.requests.pages import page_of, parse_list_query
from responses_app.stores.files import PIECE_BYTES, FilesFull
from responses_app.stores.skills import DefaultInUse, NewBundle, SkillGone, SkillRecord, SkillsFull, VersionRecord
from responses_app.tools.skill_bundles import BadBundle, SentFile, read_folder, read_zip
from responses_app.web.endpoint import BYTES, PAGED, Endpoint, Form, Refusals, Size, text
from responses_app.web.forms import SentForm, sent_form
from responses_app.web.http import ApiRequest, parse_noting, read_json
from responses_app.web.transfers import file_answer, streamed
from responses_app.wiring.site import get_site


class Skill(TypedDict):
    """A skill. Its name and its description are those of its default version."""

    id: str
    object: Literal["skill"]
    created_at: int
    default_version: str
    latest_version: str
    name: str
    description: str


class SkillVersion(TypedDict):
    """A version of a skill, which nobody changes."""

    id: str
    object: Literal["skill.version"]
    created_at: int
    skill_id: str
    version: str
    name: str
    description: str


class SkillList(TypedDict):
    """A part of a list of skills. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[Skill]
    first_id: str
    last_id: str
    has_more: bool


class SkillVersionList(TypedDict):
    """A part of a list of versions. The ids of an empty one are empty texts."""

    object: Literal["list"]
    data: list[SkillVersion]
    first_id: str
    last_id: str
    has_more: bool


class DeletedSkill(TypedDict):
    """A skill is gone, with all its versions."""

    id: str
    object: Literal["skill.deleted"]
    deleted: Literal[True]


class DeletedSkillVersion(TypedDict):
    """A version is gone, and with the last one its skill."""

    id: str
    object: Literal["skill.version.deleted"]
    deleted: Literal[True]
    version: str


def skill_object(record: SkillRecord) -> Skill:
    """Return a skill."""
    return {
        "id": record.id,
        "object": "skill",
        "created_at": record.created_at,
        "default_version": str(record.default.version),
        "latest_version": str(record.latest),
        "name": record.default.name,
        "description": record.default.description,
    }


def version_object(record: VersionRecord) -> SkillVersion:
    """Return a version."""
    return {
        "id": record.id,
        "object": "skill.version",
        "created_at": record.created_at,
        "skill_id": record.skill_id,
        "version": str(record.version),
        "name": record.name,
        "description": record.description,
    }


def _gone(problem: SkillGone, skill_id: str = "", version: str = "") -> ApiError:
    if problem.version is None:
        return skill_not_found(skill_id)
    return skill_version_not_found(skill_id, version or str(problem.version))


REFUSALS: Refusals = {
    SkillGone: _gone,
    SkillsFull: lambda problem, *_: skills_full(str(problem)),
    FilesFull: lambda problem, *_: files_full(str(problem), param="files"),
    DefaultInUse: lambda _, skill_id="", version="": default_in_use(skill_id, version),
    BadBundle: lambda problem, *_: invalid_skill(str(problem)),
}
_AT_ONCE = 2  # bundles that one worker looks at: each is in memory, and takes a core for a while
_looking = asyncio.Semaphore(_AT_ONCE)


async def _create(request: ApiRequest) -> Skill:
    site = get_site()
    async with sent_form(request, NewVersion, name="files", several=True) as form:
        parse_noting(request, partial(validate, NewVersion), form.fields, site.reader)
        async with _looking:
            bundle = await asyncio.to_thread(_bundle, form)
            new = (site.new_id(ids.SKILL), site.new_id(ids.SKILL_VERSION), bundle, int(site.service.now()))
            return skill_object(await site.skills.create(request.project, *new))


async def _add(request: ApiRequest, skill_id: str) -> SkillVersion:
    site, project = get_site(), request.project
    await site.skills.get(project, skill_id)  # before its body is read
    async with sent_form(request, NewVersion, name="files", several=True) as form:
        fields = parse_noting(request, partial(validate, NewVersion), form.fields, site.reader)
        async with _looking:
            bundle = await asyncio.to_thread(_bundle, form)
            new = (skill_id, site.new_id(ids.SKILL_VERSION), bundle, int(site.service.now()))
            return version_object(await site.skills.add(project, *new, default=fields.default == "true"))


def _bundle(form: SentForm) -> NewBundle:
    """Return what was sent as it is kept. Raises `BadBundle`."""
    settings = get_site().skills.bounds
    only = form.files[0] if len(form.files) == 1 else None
    if only is not None and next(only.pieces(), b"")[:2] == b"PK":
        if only.size > settings.skill_max_bytes:
            raise BadBundle(f"the zip file has more than the {settings.skill_max_bytes} bytes that it may have")
        read = read_zip(b"".join(only.pieces()), settings)
    else:
        files = [SentFile(each.path, each.pieces) for each in form.files]
        read = read_folder(files, settings)
    return NewBundle(
        name=read.name,
        description=read.description,
        digest=read.digest,
        unpacked=read.unpacked,
        content=read.content,
    )


async def _list(request: ApiRequest) -> SkillList:
    page = parse_list_query(request.query, ids.SKILL)
    rows = await get_site().skills.listed(
        request.project, after=page.after, descending=page.descending, limit=page.limit + 1
    )
    return page_of(rows, page, skill_object)


async def _get(request: ApiRequest, skill_id: str) -> Skill:
    return skill_object(await get_site().skills.get(request.project, skill_id))


async def _change(request: ApiRequest, skill_id: str) -> Skill:
    skills, project = get_site().skills, request.project
    await skills.get(project, skill_id)  # before the body is judged: what is another project's does not exist
    version = await read_json(request, parse_change, get_site().reader)
    return skill_object(await skills.set_default(project, skill_id, version))


async def _delete(request: ApiRequest, skill_id: str) -> DeletedSkill:
    await get_site().skills.delete(request.project, skill_id)
    return {"id": skill_id, "object": "skill.deleted", "deleted": True}


async def _versions(request: ApiRequest, skill_id: str) -> SkillVersionList:
    page = parse_list_query(request.query, ids.SKILL_VERSION)
    rows = await get_site().skills.versions(
        request.project, skill_id, after=page.after, descending=page.descending, limit=page.limit + 1
    )
    return page_of(rows, page, version_object)


async def _get_version(request: ApiRequest, skill_id: str, version: str) -> SkillVersion:
    return version_object(await _found(request, skill_id, version))


async def _delete_version(request: ApiRequest, skill_id: str, version: str) -> DeletedSkillVersion:
    number = (await _found(request, skill_id, version)).version
    gone = await get_site().skills.delete_version(request.project, skill_id, number)
    return {"id": gone.id, "object": "skill.version.deleted", "deleted": True, "version": str(number)}


async def _content(request: ApiRequest, skill_id: str, version: str | None = None) -> HttpResponseBase:
    record = await _found(request, skill_id, version)
    name = f"{record.name}.zip"
    if request.method == "HEAD":
        return file_answer(name, record.bytes, b"", kind=ZIP)
    pieces = get_site().skills.pieces(record)
    first = await anext(pieces, b"")  # what fails by then is answered as an error
    if record.bytes <= PIECE_BYTES:
        return file_answer(name, record.bytes, first, kind=ZIP)
    return file_answer(name, record.bytes, streamed(first, pieces, request.cut, _BROKEN), kind=ZIP)


_BROKEN = (SkillGone, StoreError)  # it is deleted meanwhile, or the store is away
ZIP = "application/zip"


async def _found(request: ApiRequest, skill_id: str, version: str | None) -> VersionRecord:
    """Return a version by what a path says; None for the default one. Raises `SkillGone`, and `ApiError`."""
    skills, project = get_site().skills, request.project
    number = 0 if version == LATEST else version and version_number(version)
    if version is not None and number is None:
        await skills.get(project, skill_id)
        raise skill_version_not_found(skill_id, version)
    return await skills.version(project, skill_id, number if isinstance(number, int) else None)


def _form(name: str, fields: dict[str, JsonObject]) -> Form:
    content: JsonObject = {"type": "string", "contentMediaType": BYTES}
    schema: JsonObject = {
        "type": "object",
        "description": "A form with a skill: a zip file, or the files of its folder, each with its path as its name.",
        "properties": {"files": {"anyOf": [content, {"type": "array", "items": content}]}, **fields},
        "required": ["files"],
    }
    return Form(name, schema, Size.SKILL)


_SKILLS = "/v1/skills"
_SKILL = f"{_SKILLS}/{{skill_id}}"
_VERSIONS = f"{_SKILL}/versions"
_VERSION = f"{_VERSIONS}/{{version}}"
_NEW, _MORE = _form("NewSkill", {}), _form("NewSkillVersion", {"default": text(enum=["true", "false"])})
_endpoint = partial(Endpoint, tag="Skills", scope=Area.SKILLS, refusals=REFUSALS)

_KEPT = ("A skill is kept", "Send what the model is to know in 'instructions'.")

ENDPOINTS: Sequence[Endpoint] = (
    _endpoint("GET", _SKILLS, _list, "ListSkills", "List the skills", takes=PAGED),
    _endpoint(*("POST", _SKILLS, _create, "CreateSkill", "Create a skill"), form=_NEW, keeps=_KEPT),
    _endpoint("GET", _SKILL, _get, "GetSkill", "Return a skill"),
    _endpoint(*("POST", _SKILL, _change, "UpdateSkillDefaultVersion", "Make a version the default"), body=ChangedSkill),
    _endpoint("DELETE", _SKILL, _delete, "DeleteSkill", "Delete a skill, with all its versions"),
    _endpoint(
        *("GET", f"{_SKILL}/content", _content, "GetSkillContent", "Return the default version as a zip file"),
        answers={ZIP: ""},
    ),
    _endpoint("GET", _VERSIONS, _versions, "ListSkillVersions", "List the versions of a skill", takes=PAGED),
    _endpoint("POST", _VERSIONS, _add, "CreateSkillVersion", "Add a version to a skill", form=_MORE),
    _endpoint("GET", _VERSION, _get_version, "GetSkillVersion", "Return a version"),
    _endpoint("DELETE", _VERSION, _delete_version, "DeleteSkillVersion", "Delete a version"),
    _endpoint(
        *("GET", f"{_VERSION}/content", _content, "GetSkillVersionContent", "Return a version as a zip file"),
        answers={ZIP: ""},
    ),
)
