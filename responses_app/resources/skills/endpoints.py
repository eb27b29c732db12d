"""`/v1/skills`: skills of projects, and their versions. Times are Unix seconds."""

import asyncio
from collections.abc import Sequence
from functools import partial

from django.http.response import HttpResponseBase

from responses_app.kit.errors import StoreError
from responses_app.protocol import ids
from responses_app.protocol.api_keys import Area
from responses_app.protocol.errors import ApiError, JsonObject
from responses_app.protocol.fields import validate
from responses_app.protocol.requests.pages import page_of, parse_list_query
from responses_app.resources.files.fields import PIECE_BYTES, FilesFull, files_full
from responses_app.resources.skills import fields
from responses_app.resources.skills.bundles import BadBundle, Bundle, SentFile, read_folder, read_zip
from responses_app.web.endpoint import BYTES, PAGED, Endpoint, Form, Refusals, Size
from responses_app.web.forms import SentForm, sent_form
from responses_app.web.http import ApiRequest, parse_noting, read_json
from responses_app.web.transfers import file_answer, streamed
from responses_app.wiring.site import get_site


def _gone(problem: fields.SkillGone, skill_id: str = "", version: str = "") -> ApiError:
    if problem.version is None:
        return fields.skill_not_found(skill_id)
    return fields.skill_version_not_found(skill_id, version or problem.version)


REFUSALS: Refusals = {
    fields.SkillGone: _gone,
    fields.SkillsFull: lambda problem, *_: fields.skills_full(str(problem)),
    FilesFull: lambda problem, *_: files_full(str(problem), param="files"),
    fields.DefaultInUse: lambda _, skill_id="", version="": fields.default_in_use(skill_id, version),
    BadBundle: lambda problem, *_: fields.invalid_skill(str(problem)),
}
_AT_ONCE = 2  # bundles that one worker looks at: each is in memory, and takes a core for a while
_looking = asyncio.Semaphore(_AT_ONCE)


async def _create(request: ApiRequest) -> fields.Skill:
    site = get_site()
    async with sent_form(request, fields.NewVersion, name="files", several=True) as form:
        parse_noting(request, partial(validate, fields.NewVersion), form.fields, site.reader)
        async with _looking:
            bundle = await asyncio.to_thread(_bundle, form)
            new = (site.new_id(ids.SKILL), site.new_id(ids.SKILL_VERSION), bundle, int(site.service.now()))
            return fields.shown(await site.skills.create(request.project, *new))


async def _add(request: ApiRequest, skill_id: str) -> fields.SkillVersion:
    site, project = get_site(), request.project
    await site.skills.get(project, skill_id)  # before its body is read
    async with sent_form(request, fields.NewVersion, name="files", several=True) as form:
        sent = parse_noting(request, partial(validate, fields.NewVersion), form.fields, site.reader)
        async with _looking:
            bundle = await asyncio.to_thread(_bundle, form)
            new = (skill_id, site.new_id(ids.SKILL_VERSION), bundle, int(site.service.now()))
            return fields.shown_version(await site.skills.add(project, *new, default=sent.default == "true"))


def _bundle(form: SentForm) -> Bundle:
    """Return what was sent as it is kept. Raises `BadBundle`."""
    bounds = get_site().skills.bounds
    only = form.files[0] if len(form.files) == 1 else None
    if only is None or next(only.pieces(), b"")[:2] != b"PK":
        return read_folder([SentFile(each.path, each.pieces) for each in form.files], bounds)
    if only.size > bounds.skill_max_bytes:
        raise BadBundle(f"the zip file has more than the {bounds.skill_max_bytes} bytes that it may have")
    return read_zip(b"".join(only.pieces()), bounds)


async def _list(request: ApiRequest) -> fields.SkillList:
    page = parse_list_query(request.query, ids.SKILL)
    rows = await get_site().skills.page(
        request.project, after=page.after, descending=page.descending, limit=page.limit + 1
    )
    return page_of(rows, page, fields.shown)


async def _get(request: ApiRequest, skill_id: str) -> fields.Skill:
    return fields.shown(await get_site().skills.get(request.project, skill_id))


async def _change(request: ApiRequest, skill_id: str) -> fields.Skill:
    skills, project = get_site().skills, request.project
    await skills.get(project, skill_id)  # before the body is judged: what is another project's does not exist
    change = await read_json(request, partial(validate, fields.ChangedSkill), get_site().reader)
    return fields.shown(await skills.set_default(project, skill_id, change.default_version))


async def _delete(request: ApiRequest, skill_id: str) -> fields.DeletedSkill:
    await get_site().skills.delete(request.project, skill_id)
    return {"id": skill_id, "object": "skill.deleted", "deleted": True}


async def _versions(request: ApiRequest, skill_id: str) -> fields.SkillVersionList:
    page = parse_list_query(request.query, ids.SKILL_VERSION)
    rows = await get_site().skills.versions(
        request.project, skill_id, after=page.after, descending=page.descending, limit=page.limit + 1
    )
    return page_of(rows, page, fields.shown_version)


async def _get_version(request: ApiRequest, skill_id: str, version: str) -> fields.SkillVersion:
    return fields.shown_version(await get_site().skills.version(request.project, skill_id, version))


async def _delete_version(request: ApiRequest, skill_id: str, version: str) -> fields.DeletedSkillVersion:
    gone = await get_site().skills.delete_version(request.project, skill_id, version)
    return {"id": gone.pk, "object": "skill.version.deleted", "deleted": True, "version": str(gone.version)}


async def _content(request: ApiRequest, skill_id: str, version: str | None = None) -> HttpResponseBase:
    row = await get_site().skills.version(request.project, skill_id, version)
    name = f"{row.name}.zip"
    if request.method == "HEAD":
        return file_answer(name, row.bytes, b"", kind=ZIP)
    pieces = get_site().skills.pieces(row)
    first = await anext(pieces, b"")  # what fails by then is answered as an error
    if row.bytes <= PIECE_BYTES:
        return file_answer(name, row.bytes, first, kind=ZIP)
    return file_answer(name, row.bytes, streamed(first, pieces, request.cut, _BROKEN), kind=ZIP)


_BROKEN = (fields.SkillGone, StoreError)  # it is deleted meanwhile, or the store is away
ZIP = "application/zip"


def _form(name: str, others: dict[str, JsonObject]) -> Form:
    content: JsonObject = {"type": "string", "contentMediaType": BYTES}
    schema: JsonObject = {
        "type": "object",
        "description": "A form with a skill: a zip file, or the files of its folder, each with its path as its name.",
        "properties": {"files": {"anyOf": [content, {"type": "array", "items": content}]}, **others},
        "required": ["files"],
    }
    return Form(name, schema, Size.SKILL)


_SKILLS = "/v1/skills"
_SKILL = f"{_SKILLS}/{{skill_id}}"
_VERSIONS = f"{_SKILL}/versions"
_VERSION = f"{_VERSIONS}/{{version}}"
_NEW, _MORE = _form("NewSkill", {}), _form("NewSkillVersion", fields.FORM)
_endpoint = partial(Endpoint, tag="Skills", scope=Area.SKILLS, refusals=REFUSALS)

_KEPT = ("A skill is kept", "Send what the model is to know in 'instructions'.")

ENDPOINTS: Sequence[Endpoint] = (
    _endpoint("GET", _SKILLS, _list, "ListSkills", "List the skills", takes=PAGED),
    _endpoint("POST", _SKILLS, _create, "CreateSkill", "Create a skill", form=_NEW, keeps=_KEPT),
    _endpoint("GET", _SKILL, _get, "GetSkill", "Return a skill"),
    _endpoint(
        "POST", _SKILL, _change, "UpdateSkillDefaultVersion", "Make a version the default", body=fields.ChangedSkill
    ),
    _endpoint("DELETE", _SKILL, _delete, "DeleteSkill", "Delete a skill, with all its versions"),
    _endpoint(
        "GET",
        f"{_SKILL}/content",
        _content,
        "GetSkillContent",
        "Return the default version as a zip file",
        answers={ZIP: ""},
    ),
    _endpoint("GET", _VERSIONS, _versions, "ListSkillVersions", "List the versions of a skill", takes=PAGED),
    _endpoint("POST", _VERSIONS, _add, "CreateSkillVersion", "Add a version to a skill", form=_MORE),
    _endpoint("GET", _VERSION, _get_version, "GetSkillVersion", "Return a version"),
    _endpoint("DELETE", _VERSION, _delete_version, "DeleteSkillVersion", "Delete a version"),
    _endpoint(
        "GET",
        f"{_VERSION}/content",
        _content,
        "GetSkillVersionContent",
        "Return a version as a zip file",
        answers={ZIP: ""},
    ),
)
