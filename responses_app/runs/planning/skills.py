"""Which versions of skills a request gets: they are fixed when it is accepted.

Whoever names the latest version, or the default one, gets the one that it is now: so what the model was told is told
again as it was, where another worker goes on with the response.
"""

from collections.abc import Sequence

from responses_app.protocol.errors import JsonObject
from responses_app.protocol.files.skills import skills_in
from responses_app.protocol.requests.requests import CreateRequest
from responses_app.stores.skills import BaseSkills, found_version


async def with_fixed_versions(request: CreateRequest, skills: BaseSkills, project: str) -> CreateRequest:
    """Return a request that names each version by its number. Raises `ApiError` for a skill that is not there."""
    tools = [await _fixed(tool, index, skills, project) for index, tool in enumerate(request.tools_json)]
    return request if tools == request.tools_json else request.model_copy(update={"tools_json": tools})


async def _fixed(tool: JsonObject, index: int, skills: BaseSkills, project: str) -> JsonObject:
    field, declared = skills_in(tool)
    if not declared:
        return tool
    fixed = await _numbered(declared, f"tools[{index}].{field}.skills", skills, project)
    place = tool[field]
    assert isinstance(place, dict), "it has skills"
    return {**tool, field: {**place, "skills": fixed}}


async def _numbered(declared: Sequence[JsonObject], at: str, skills: BaseSkills, project: str) -> list[JsonObject]:
    numbered = []
    for place, each in enumerate(declared):
        if each["type"] != "skill_reference":
            numbered.append(each)
            continue
        record = await found_version(skills, project, each, f"{at}[{place}]")
        numbered.append({**each, "version": str(record.version)})
    return numbered
