"""The code interpreter: Harmony's `python` tool, which runs code in a container's kernel, or at an MCP server.

`CodeInterpreterTool` runs it here. The container is the one that a request names; with `{"type": "auto"}` it is the one
of the chain, made where there is none any more.

`McpInterpreter`: code runs by a tool of an MCP server, for machines on which no sandbox holds. SANDBOX_MCP names its
label in MCP_SERVERS, or `label.tool`. Such a server has no containers of ours: clients cannot name one, and whether
variables last from one call to the next is the server's to decide.
"""

import base64
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, cast

from engine import orjson
from engine.formats.base import ToolNamespace
from responses_app.extensions.containers.contents import (
    GivenFile,
    GivenFiles,
    GivenSkills,
    copied_in,
    network_of,
    network_text,
    skills_text,
    values_of,
    with_copied,
)
from responses_app.extensions.containers.sandbox.records import (
    UNKEPT,
    CellEnd,
    CellRun,
    ContainerFileRecord,
    ContainerNotFound,
    ContainerRecord,
    Execution,
    FileUnknown,
    HostGone,
    Image,
    MemoryRefused,
    NetworkRefused,
    SandboxError,
)
from responses_app.extensions.containers.sandbox.settings import SandboxSettings
from responses_app.extensions.containers.sandbox.sharing import SharedContainers
from responses_app.extensions.containers.sandbox.skills import MountedSkill
from responses_app.kit.errors import StoreError
from responses_app.protocol.errors import (
    ApiError,
    JsonObject,
    container_not_found,
    invalid_request,
    overloaded,
    unsupported_parameter,
)
from responses_app.protocol.files.containers import MemoryLimit
from responses_app.protocol.files.skills import skills_in
from responses_app.protocol.items.offers import Offer, OfferedTool
from responses_app.protocol.output.citations import state_of
from responses_app.protocol.requests.create_fields import FILE_OUTPUTS
from responses_app.protocol.requests.server_tools import SHELL_ITEM
from responses_app.protocol.setting import MIB
from responses_app.resources.files.fields import file_not_found
from responses_app.resources.skills.fields import SkillGone
from responses_app.tools.base import BaseTool, ToolCall, ToolFailed, ToolImage, ToolResult, ToolUse
from responses_app.tools.mcp.named import NamedTool, NoSuchTool, parameter_of

logger = logging.getLogger("respsite.tools")

OUTPUTS = "code_interpreter_call.outputs"  # what `include` calls them
ITEM = "code_interpreter_call"
MAX_NAMED = 4  # containers in the items of a request, of which the latest that is still there is used
MAX_SHOWN_IMAGES = 2 * MIB  # bytes of an item's images, before they are written as base64
# As the models were trained to read it, but for the time and the network.
_ABOUT = (
    "Use this tool to execute Python code in your chain of thought. The code will not be shown to the user. This tool "
    "should be used for internal reasoning, but not for code that is intended to be visible to the user (e.g. when "
    "creating plots, tables, or files).\n"
    "When you send a message containing Python code to python, it will be executed in a stateful Jupyter notebook "
    "environment. python will respond with the output of the execution or time out after {seconds:g} seconds. The "
    "drive at '/mnt/data' can be used to save and persist user files."
)

if TYPE_CHECKING:
    from responses_app.resources.files.store import Files
    from responses_app.resources.skills.store import Skills
_OFFLINE = " Internet access for this session is disabled."
_FILES = "\nFiles of the user in '/mnt/data': {names}"
_NOTHING = "[no output: print what you want to see]"
_NEW = "[The container of the earlier calls {went}: its variables and files are lost. This is a new one.]"
_SAVED = "[The container was at rest on disk since the earlier calls: its variables are lost, its files are not.]"
LOST = "[All processes of the container were ended: its variables are lost, its files are not.]"
_ENDINGS = {
    CellEnd.TIMED_OUT: "[The code ran for longer than {seconds:g} seconds and was stopped.]",
    CellEnd.TOO_MUCH_OUTPUT: "[The code printed too much and was stopped.]",
    CellEnd.TOO_MUCH_DISK: "[The code wrote too much and was stopped: its variables and files are lost.]",
    CellEnd.TOO_MUCH_MEMORY: "[The code took too much memory and was stopped.]",
    CellEnd.STOPPED: "[The code was stopped.]",
}
# With these the call has failed.
_TOO_FAR = (CellEnd.TIMED_OUT, CellEnd.TOO_MUCH_MEMORY, CellEnd.TOO_MUCH_OUTPUT, CellEnd.TOO_MUCH_DISK)


class CodeInterpreterTool(BaseTool):
    """Runs code in containers."""

    kinds: ClassVar = ("code_interpreter",)

    def __init__(
        self,
        *,
        containers: SharedContainers,
        settings: SandboxSettings,
        files: "Files",
        skills: "Skills",
    ) -> None:
        self._settings = settings
        self.containers = containers
        self.given_files = GivenFiles(files, self.containers, max_bytes=settings.sandbox_disk_bytes)
        self.given_skills = GivenSkills(skills, self.containers)

    def problem(self) -> str | None:
        return self.containers.problem

    async def aclose(self) -> None:
        await self.containers.aclose()

    async def offer(self, use: ToolUse) -> Offer:
        container, has = await self.opened(use, "code interpreter")
        network = network_text(container.network, _OFFLINE)
        about = _ABOUT.format(seconds=self._settings.sandbox_call_seconds) + network + has
        tool = OfferedTool(name="python", item=ITEM, fields={"container_id": container.id}, repeatable=True)
        return Offer(ToolNamespace("python", about), [tool])

    async def opened(self, use: ToolUse, tool: str) -> tuple[ContainerRecord, str]:
        """Return the container of a request, and a text for the model on its files and skills. Raises `ApiError`."""
        try:
            await self.containers.check()
            container = await self.container(use)
            if values := values_of(use):
                # Those of this request, also in a container that is there already.
                await self.containers.give_secrets(use.project, container.id, values)
        except HostGone as gone:
            raise overloaded(f"The {tool} cannot be used now: {gone}.", retry_after=2) from None
        except MemoryRefused as refused:
            raise invalid_request(
                f"The container cannot be made: {refused}.", param=f"{use.container_at}.memory_limit"
            ) from None
        except NetworkRefused as refused:
            raise unsupported_parameter(
                f"{use.container_at}.network_policy", f"The container cannot be made: {refused}."
            ) from None
        except SandboxError as problem:
            raise unsupported_parameter(use.at, f"The {tool} cannot be used here. {problem}") from None
        except ContainerNotFound as unknown:
            # That of a shell, whose environment is read as a container.
            is_shell = use.container_at.endswith(".environment")
            at = f"{use.container_at}.container_id" if is_shell else use.container_at
            raise container_not_found(str(unknown), param=at) from None
        file_ids = _file_ids(use)
        files = await self._given(use, container, file_ids) if file_ids else ()
        of_files = _FILES.format(names=", ".join(each.path for each in files)) if files else ""
        return container, of_files + await self._told_of_skills(use, container)

    async def _given(self, use: ToolUse, container: ContainerRecord, file_ids: Sequence[str]) -> Sequence[GivenFile]:
        try:
            return await self.given_files.find(use.project, file_ids, copied_in(use.state, container.id))
        except FileUnknown as unknown:
            raise file_not_found(str(unknown), param=f"{use.container_at}.file_ids") from None
        except SandboxError as problem:
            raise invalid_request(
                f"The container cannot have the file: {problem}.", param=f"{use.container_at}.file_ids"
            ) from None
        except StoreError:
            raise overloaded("The files cannot be read now. Try again shortly.", retry_after=2) from None

    async def _told_of_skills(self, use: ToolUse, container: ContainerRecord) -> str:
        """Return a text for the model on the skills that a request declares, or that the container it names has."""
        try:
            if isinstance(use.declared.get("container"), str):
                skills: Sequence[MountedSkill] = await self.containers.skills_of(use.project, container.id)
            else:
                _, declared = skills_in(use.declared)
                requested = await self.given_skills.find(use.project, declared, at=f"{use.container_at}.skills")
                skills = [each.mounted for each in requested]
        except StoreError:
            raise overloaded("The skills cannot be read now. Try again shortly.", retry_after=2) from None
        return f"\n{skills_text(skills)}" if skills else ""

    async def call(self, call: ToolCall) -> ToolResult:
        try:
            container = await self.container(call.use)
            copied = await self.provided(call, container)
            code = code_of(call.arguments)
            # Where another worker has begun the same call, it does not run twice.
            key = f"{call.use.response_id} {call.item_id} {sha256(code.encode(errors='replace')).hexdigest()}"
            run = await self.containers.run(container.project, container.id, code, call=key)
        except ContainerNotFound:
            raise ToolFailed("the container has expired.", shown=_failed()) from None
        except SandboxError as problem:
            logger.warning("response %s: code could not be run: %s %s", call.use.response_id, problem, problem.detail)
            raise ToolFailed(f"{problem}.", shown=_failed()) from None
        notes = notes_of(run.execution, self._settings)
        shown: JsonObject = {"container_id": container.id}
        text = "\n".join([*loss_of(call, container, run.begun_anew, was_saved=run.was_saved), *notes, text_of_run(run)])
        failed = run.execution.ended in _TOO_FAR
        files = (*run.files, *await self._kept(container, run.execution.images))
        written = [(file.path, file.id) for file in files]
        if OUTPUTS in call.use.include:
            # Only where the client asks for it: images make an item large.
            by_id = FILE_OUTPUTS in call.use.include
            outputs = outputs_of(replace(run.execution, images=()) if by_id else run.execution)
            if by_id and files:
                outputs.append({"type": "files", "files": [{"file_id": file.id} for file in files]})
            shown["outputs"] = outputs
        state = with_copied(state_of(container.id, call.state, written), copied)
        seen: list[str | ToolImage] = [text, *(ToolImage(image.content) for image in run.execution.images)]
        return ToolResult(text, shown, failed, state, seen)

    async def provided(self, call: ToolCall, container: ContainerRecord) -> Mapping[str, str]:
        """Have the files and skills of a request in its container; return where those of the chain are, by their ids.

        Raises `ToolFailed`, `ContainerNotFound` and `SandboxError`.
        """
        use = call.use
        try:
            _, declared = skills_in(use.declared)
            requested = await self.given_skills.find(use.project, declared, at=f"{use.container_at}.skills")
            await self.given_skills.provide(use.project, container.id, requested)
        except (ApiError, SkillGone):
            raise ToolFailed("a skill of the request has been deleted.", shown=_failed()) from None
        except StoreError:
            raise ToolFailed("the skills of the request cannot be read now.", shown=_failed()) from None
        copied = copied_in(call.state, container.id)
        file_ids = _file_ids(use)
        if not file_ids:
            return copied
        try:
            files = await self.given_files.find(use.project, file_ids, copied)
            provided = await self.given_files.provide(use.project, container.id, files)
        except FileUnknown:
            raise ToolFailed("a file of the request has been deleted.", shown=_failed()) from None
        except StoreError:
            raise ToolFailed("the files of the request cannot be read now.", shown=_failed()) from None
        return {**copied, **{each.id: each.path for each in provided}}

    async def _kept(self, container: ContainerRecord, images: Sequence[Image]) -> Sequence[ContainerFileRecord]:
        """Keep the images as files, by which clients get them without `include`; none where there is no room."""
        try:
            return [
                await self.containers.put_image(container.project, container.id, each.media_type, each.content)
                for each in images
            ]
        except (ContainerNotFound, SandboxError) as problem:
            logger.info("container %s does not keep its images: %s", container.id, problem)
            return ()

    async def forget_response(self, use: ToolUse) -> None:
        try:
            network = network_of(use)
            key = network.key if network is not None else ""
            container = await self.containers.of_chain(use.project, [_key_of_chain(use, key)], key)
            if container is not None:
                await self.containers.delete(use.project, container.id)
        except (ContainerNotFound, SandboxError) as problem:  # it has ended, or does once it is idle
            logger.info("response %s: its container was not removed: %s", use.response_id, problem)

    async def expire(self, project: str, oldest: float) -> None:
        await self.containers.end_older(project, oldest)

    async def container(self, use: ToolUse) -> ContainerRecord:
        """Return the container of a request: the same one for its offer and for its calls."""
        containers, named = self.containers, use.declared.get("container")
        if isinstance(named, str):
            return await containers.find(use.project, named)
        network = network_of(use)
        key = network.key if network is not None else ""
        # What another request of the chain may reach is nothing for this one: there may be a container for each.
        container = await containers.of_chain(use.project, _keys(use, key), key)
        if container is None:
            memory = named.get("memory_limit") if isinstance(named, dict) else None
            # The request was validated, so it is one of the limits.
            container = await containers.create(
                use.project,
                name=UNKEPT if use.unkept else "auto",
                memory=cast("MemoryLimit | None", memory),
                network=network,
            )
        await containers.join_chain(container.id, [_key_of_chain(use, key)])
        return container


def _file_ids(use: ToolUse) -> Sequence[str]:
    """Return the files that a request's container is to begin with."""
    container = use.declared.get("container")
    named = container.get("file_ids") if isinstance(container, dict) else None
    return [str(each) for each in named] if isinstance(named, list) else ()


def _key_of_chain(use: ToolUse, network: str) -> str:
    """Return the key of a chain's container that has this access to the network: each has its own.

    Where nothing is kept, each response has its own, which goes with it.
    """
    key = use.response_id if use.unkept else use.chain_id
    return f"{key} {network}" if network else key


def _keys(use: ToolUse, network: str) -> Iterator[str]:
    """Yield the keys that a chain's container may have, the surest first."""
    # The state says it for sure; the chain's id is what a first call is known by whose worker has died.
    if use.state is not None and not use.unkept:
        yield str(use.state.get("container_id"))
    yield _key_of_chain(use, network)
    if use.unkept:
        return
    named = (_container_named_by(item) for item in reversed(use.items))
    # Items come from clients: only a few of the containers that they name are looked for.
    yield from islice(dict.fromkeys(each for each in named if isinstance(each, str)), MAX_NAMED)


def _container_named_by(item: JsonObject) -> object:
    """Return the id of the container that a call names; None for all other items."""
    environment = item.get("environment") if item.get("type") == SHELL_ITEM else None
    of_shell = environment.get("container_id") if isinstance(environment, dict) else None
    return item.get("container_id") if item.get("type") == ITEM else of_shell


def loss_of(
    call: ToolCall, container: ContainerRecord, begun_anew: str | None, *, was_saved: bool = False
) -> list[str]:
    """Return the note for the model where nothing of the earlier calls is there, or no variables are."""
    # Without a state there was no call before: then it is no new container.
    earlier = (call.state or {}).get("container_id", container.id)
    if begun_anew is not None or earlier != container.id:
        return [_NEW.format(went=f"was ended, because {begun_anew}" if begun_anew else "is gone")]
    return [_SAVED] if was_saved else []


def notes_of(execution: Execution, settings: SandboxSettings) -> Iterator[str]:
    """Yield notes for the model on how a cell ended, and on losses."""
    if execution.ended in _ENDINGS:
        yield _ENDINGS[execution.ended].format(seconds=settings.sandbox_call_seconds)
    if execution.variables_lost and execution.ended is not CellEnd.TOO_MUCH_DISK:  # that has lost the files, too
        yield LOST


def code_of(arguments: str) -> str:
    """Return the code of a call: the text of the model, or a string in the JSON that it wrapped it in."""
    if not arguments.lstrip().startswith("{"):
        return arguments
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    # That one key alone: `{"code": …, "x": …}` may be a dictionary of Python's.
    wrapped = value.get("code") if isinstance(value, dict) and value.keys() == {"code"} else None
    return wrapped if isinstance(wrapped, str) else arguments


def text_of_run(run: CellRun) -> str:
    """Return the text of a run for the model: its output, and the number of its images."""
    lines = [run.execution.output or _NOTHING] if run.execution.output or not run.execution.images else []
    if run.execution.images:
        lines.append(f"[{len(run.execution.images)} image(s) were shown to the user]")
    return "\n".join(lines)


def outputs_of(execution: Execution) -> list[JsonObject]:
    """Return the `outputs` of an item: the printed text, and the images as data URLs."""
    outputs: list[JsonObject] = [{"type": "logs", "logs": execution.output}] if execution.output else []
    left = MAX_SHOWN_IMAGES
    for image in execution.images:
        # In their order, as long as they fit; a smaller one behind a large one may still be shown.
        left -= len(image.content)
        if left >= 0:
            url = f"data:{image.media_type};base64,{base64.b64encode(image.content).decode()}"
            outputs.append({"type": "image", "url": url})
    return outputs


def _failed() -> JsonObject:
    return {"outputs": None}


_ABOUT_MCP = (
    "Use this tool to execute Python code in your chain of thought. The code will not be shown to the user. This tool "
    "should be used for internal reasoning, but not for code that is intended to be visible to the user (e.g. when "
    "creating plots, tables, or files).\n"
    "When you send a message containing Python code to python, it will be executed, and python will respond with what "
    "it printed. Variables and files of earlier calls may be gone: make each call whole, and print what you want to "
    "see."
)
_RUNS_CODE = ("python", "code", "execute", "run")  # in the name of a tool that runs it
# Parameters that may take the code, the likeliest first.
_CODES = ("code", "python_code", "python", "script", "source", "command", "input")


class McpInterpreter(BaseTool):
    """Runs code by one of the operator's MCP servers; `mcp` calls those, and is another's to close."""

    kinds: ClassVar = ("code_interpreter",)

    def __init__(self, mcp: BaseTool, named: str) -> None:
        self._tool = NamedTool(mcp, named, words=_RUNS_CODE, about="that runs code")
        self.max_seconds, self.idle_seconds = mcp.max_seconds, mcp.idle_seconds

    def refusal(self, declared: JsonObject) -> str | None:
        container = declared.get("container")
        policy = container.get("network_policy") if isinstance(container, dict) else None
        if isinstance(policy, dict) and policy.get("type") == "allowlist":
            return "Containers at an MCP server have no 'network_policy'."
        return "Containers at an MCP server have no skills." if skills_in(declared)[1] else None

    async def offer(self, use: ToolUse) -> Offer:
        container = use.declared.get("container")
        if isinstance(container, str):
            raise container_not_found(container, param=use.container_at)
        # The chain's own digits: an item must name a container, and here is none.
        fields: JsonObject = {"container_id": f"cntr_{use.chain_id.partition('_')[2]}"}
        return Offer(ToolNamespace("python", _ABOUT_MCP), [OfferedTool(name="python", item=ITEM, fields=fields)])

    async def call(self, call: ToolCall) -> ToolResult:
        def arguments(tool: JsonObject) -> JsonObject:
            return {parameter_of(tool, _CODES): code_of(call.arguments)}

        # A connection is one project's: the server may keep variables from one call to the next.
        says = "the MCP server of SANDBOX_MCP says:"
        try:
            result = await self._tool.call(call.use, arguments, item_id=call.item_id, report=lambda _: call.report({}))
        except NoSuchTool as missing:
            raise ToolFailed(f"{says} it has {missing}", shown=_failed()) from None
        except ToolFailed as problem:
            raise ToolFailed(f"{says} {problem}", shown=_failed()) from None
        shown: JsonObject = {}
        if OUTPUTS in call.use.include:
            shown["outputs"] = [{"type": "logs", "logs": result.text}] if result.text else []
        return ToolResult(result.text or _NOTHING, shown, result.failed, seen=result.seen)
