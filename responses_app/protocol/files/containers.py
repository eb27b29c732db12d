"""Containers of the code interpreter and the shell: as requests name them, and the Containers API's bodies."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from responses_app.protocol.errors import ApiError, JsonObject, invalid_value, not_found, rate_limited
from responses_app.protocol.fields import CallableTool, ClientModel, missing, validate
from responses_app.protocol.files.networks import NetworkPolicy, check_network
from responses_app.protocol.files.skills import NamedSkills

MemoryLimit = Literal["1g", "4g", "16g", "64g"]
MAX_FILES = 50  # that a container begins with
_CONTAINER_ID = r"^cntr_.{1,200}$"
MAX_MINUTES = 24 * 60  # that a container may do nothing


class _Auto(ClientModel):
    """A container that the server chooses: the one of the chain, or a new one."""

    type: Literal["auto"]
    file_ids: list[str] | None = Field(default=None, max_length=MAX_FILES)
    memory_limit: MemoryLimit | None = None
    network_policy: NetworkPolicy | None = None
    skills: NamedSkills | None = None

    own: ClassVar = ("skills",)  # which OpenAI's shell alone has


class CodeInterpreter(CallableTool):
    """The tool, as a request declares it. OpenAI requires `container`; here its absence means `auto`."""

    container: str | _Auto = _Auto.model_construct(type="auto")  # not validated: that would build the model here


class AutoEnvironment(ClientModel):
    """A container that the server chooses for a shell, as `_Auto` is one for the code interpreter."""

    type: Literal["container_auto"]
    file_ids: list[str] | None = Field(default=None, max_length=MAX_FILES)
    memory_limit: MemoryLimit | None = None
    network_policy: NetworkPolicy | None = None
    skills: NamedSkills | None = None


class ReferenceEnvironment(ClientModel):
    """A container that is there already."""

    type: Literal["container_reference"]
    container_id: str = Field(pattern=_CONTAINER_ID)


class AutoShell(CallableTool):
    """A shell whose commands run in a container that the server chooses."""

    environment: AutoEnvironment


class ReferenceShell(CallableTool):
    """A shell whose commands run in a container that is there already."""

    environment: ReferenceEnvironment


class ExpiresAfterMinutes(ClientModel):
    """How long a container may do nothing."""

    anchor: Literal["last_active_at"]
    minutes: int = Field(ge=1, le=MAX_MINUTES)


class NewContainer(ClientModel):
    """The body of a create."""

    name: str = Field(min_length=1, max_length=256)
    expires_after: ExpiresAfterMinutes | None = None
    file_ids: list[str] | None = Field(default=None, max_length=MAX_FILES)
    memory_limit: MemoryLimit | None = None
    network_policy: NetworkPolicy | None = None
    skills: NamedSkills | None = None

    @property
    def idle_seconds(self) -> float | None:
        """How long it may do nothing, in seconds; None: as long as any."""
        return None if self.expires_after is None else self.expires_after.minutes * 60.0


def parse_container(data: Mapping[str, object]) -> NewContainer:
    """Read the body of a create. Raises `ApiError` that names the field and says what it takes."""
    container = validate(NewContainer, data)
    check_network(container.network_policy, "network_policy")
    return container


class CopiedFile(ClientModel):
    """The body that copies a file of the Files API into a container."""

    file_id: str = Field(min_length=1, max_length=256)

    beside: ClassVar = ("file",)  # which a form has


def parse_copied(data: Mapping[str, object]) -> CopiedFile:
    """Read the body of a copy. Raises `ApiError`."""
    if data.get("file_id") is None:
        raise missing("file")  # which a form would have
    return validate(CopiedFile, data)


def container_file_not_found(container_id: str, file_id: str) -> ApiError:
    """The container has no such file, or not any more (404)."""
    message = f"File with id '{file_id[:80]}' not found in container '{container_id[:80]}'."
    return not_found(message, param="file_id")


def too_many_containers(message: str) -> ApiError:
    """All containers are at work (429)."""
    return rate_limited(f"{message[:1].upper()}{message[1:]}.", retry_after=5)


def echoed_interpreter(tool: JsonObject, at: str) -> JsonObject:
    """Validate the code interpreter as a tool of a request; return it as it is echoed. Raises `ApiError`."""
    given = tool.get("container")
    if isinstance(given, dict):  # by itself, so that an error names the field of it, and not the forms that it has
        validate(_Auto, given, at=f"{at}.container")
    container = validate(CodeInterpreter, tool, at=at).container
    if isinstance(container, str):
        if not container.startswith("cntr_"):
            raise invalid_value(f"{at}.container", "the id of a container begins with 'cntr_'.")
        return {"type": "code_interpreter", "container": container}
    check_network(container.network_policy, f"{at}.container.network_policy")
    return {"type": "code_interpreter", "container": container.model_dump(exclude_none=True)}


def echoed_shell(tool: JsonObject, at: str) -> JsonObject:
    """Validate a shell of the server as a tool of a request; return it as it is echoed. Raises `ApiError`."""
    given = tool["environment"]
    assert isinstance(given, dict), "it is a shell of the server"
    if given["type"] == "container_auto":
        auto = validate(AutoShell, tool, at=at).environment
        check_network(auto.network_policy, f"{at}.environment.network_policy")
        environment: ClientModel = auto
    else:
        environment = validate(ReferenceShell, tool, at=at).environment
    callers = tool.get("allowed_callers")
    return {
        "type": "shell",
        "environment": environment.model_dump(exclude_none=True),
        **({} if callers is None else {"allowed_callers": callers}),
    }
