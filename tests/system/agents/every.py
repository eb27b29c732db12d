"""The agents that do the task: how each is started, and what its tools are called."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.clients.codex import cli as codex
from tests.clients.copilot import cli as copilot
from tests.kit import npm
from tests.system.agents.agent import Agent, FileTools, PatchTools, Shell, Way
from tests.system.agents.clients import Configured, Program, last_text_of, result_of

CLIENTS = Path(__file__).parents[2] / "clients"
MODEL = "gpt-oss-20b"
VERSION = "/v1"  # behind a server's address


def _manifest(folder: str) -> Path:
    return CLIENTS / folder / "package.json"


def _installed(folder: str, program: str) -> Callable[[], Path]:
    return lambda: npm.program(_manifest(folder), program)


def _codex(folder: Path, address: str, way: Way) -> codex.Codex:
    provider = codex.config(base_url=address + VERSION, model=MODEL, websockets=way is Way.WEBSOCKET)
    return codex.Codex(codex.installed(), folder, config=provider)


CODEX = Agent(
    name="Codex CLI",
    manifest=_manifest("codex"),
    ways=(Way.WEBSOCKET, Way.RESPONSES),
    open=_codex,
    tools=PatchTools(shell=Shell("exec_command", "cmd")),
)

_CLAUDE = Program(
    name="claude",
    installed=_installed("claude", "@anthropic-ai/claude-code-*/claude"),
    arguments=("--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions", "--print"),
    answer=result_of,
    # It does not let root leave out its questions, unless it is told that nothing can be harmed.
    variables={"IS_SANDBOX": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
)


def _claude(folder: Path, address: str, _way: Way, *, program: Program = _CLAUDE) -> Configured:
    return Configured(program, folder, base_url=address + VERSION, model=MODEL)


CLAUDE = Agent(
    name="Claude Code",
    manifest=_manifest("claude"),
    ways=(Way.MESSAGES,),
    open=_claude,
    tools=FileTools(
        read=("Read", "file_path"),
        edit=("Edit", "file_path", "old_string", "new_string"),
        write=("Write", "file_path", "content"),
        shell=Shell("Bash", "command", {"description": "Work"}),
    ),
)

# With the tools of the task alone: its prompt has 3,600 tokens, and not 10,300.
_BARE = replace(_CLAUDE, arguments=("--tools", "Bash,Read,Edit,Write", *_CLAUDE.arguments))
BARE_CLAUDE = replace(CLAUDE, open=partial(_claude, program=_BARE))

_OPENCODE = Program(
    name="opencode",
    installed=_installed("opencode", "opencode-*/bin/opencode"),
    arguments=("run", "--format", "json"),
    answer=last_text_of,
    variables={f"OPENCODE_DISABLE_{what}": "1" for what in ("MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD")},
)


# Of OpenCode, and of what was made of it.
AI_SDK_PACKAGES = {
    Way.RESPONSES: "@ai-sdk/openai",
    Way.CHAT: "@ai-sdk/openai-compatible",
    Way.MESSAGES: "@ai-sdk/anthropic",
}


def _opencode(folder: Path, address: str, way: Way) -> Configured:
    def changed(text: str) -> str:
        return text.replace(AI_SDK_PACKAGES[Way.RESPONSES], AI_SDK_PACKAGES[way])

    return Configured(_OPENCODE, folder, base_url=address + VERSION, model=MODEL, changed=changed)


OPENCODE = Agent(
    name="OpenCode",
    manifest=_manifest("opencode"),
    ways=(Way.RESPONSES, Way.CHAT),
    open=_opencode,
    tools=FileTools(  # its tool that searches downloads ripgrep first, where there is none
        read=("read", "filePath"),
        edit=("edit", "filePath", "oldString", "newString"),
        write=("write", "filePath", "content"),
        shell=Shell("bash", "command", {"description": "Work"}),
    ),
    asides={"You are a title generator.": "A shop is mended"},
)


def _copilot(folder: Path, address: str, way: Way) -> copilot.Copilot:
    transport = "websockets" if way is Way.WEBSOCKET else "http"
    variables = copilot.provider(base_url=address + VERSION, model=MODEL, transport=transport)
    if way is Way.CHAT:
        variables["COPILOT_PROVIDER_WIRE_API"] = "completions"
    if way is Way.MESSAGES:  # it asks for /v1/messages below its base URL
        variables |= {"COPILOT_PROVIDER_TYPE": "anthropic", "COPILOT_PROVIDER_BASE_URL": address}
    return copilot.Copilot(copilot.installed(), folder, variables)


COPILOT = Agent(
    name="GitHub Copilot CLI",
    manifest=_manifest("copilot"),
    ways=(Way.WEBSOCKET, Way.RESPONSES),
    open=_copilot,
    tools=PatchTools(shell=Shell("bash", "command", {"description": "Work"})),
)

_QWEN = Program(
    name="qwen",
    installed=_installed("qwen", ".bin/qwen"),
    arguments=("--output-format", "stream-json", "--yolo", "--prompt"),
    answer=result_of,
)


_PROTOCOLS = {Way.CHAT: "openai", Way.RESPONSES: "openai-responses", Way.MESSAGES: "anthropic"}


def _qwen(folder: Path, address: str, way: Way) -> Configured:
    def changed(text: str) -> str:
        return text.replace(f'"{_PROTOCOLS[Way.CHAT]}"', f'"{_PROTOCOLS[way]}"')

    # For messages it asks for /v1/messages below its base URL.
    version = "" if way is Way.MESSAGES else VERSION
    return Configured(_QWEN, folder, base_url=address + version, model=MODEL, changed=changed)


QWEN = Agent(
    name="Qwen Code",
    manifest=_manifest("qwen"),
    ways=(Way.CHAT,),
    open=_qwen,
    tools=FileTools(
        read=("read_file", "file_path"),
        edit=("edit", "file_path", "old_string", "new_string"),
        write=("write_file", "file_path", "content"),
        shell=Shell("run_shell_command", "command"),
        search=("grep_search", "pattern"),
    ),
    asides={"You are now acting as the managed memory extraction subagent": "There is nothing to keep."},
)

AGENTS = (CODEX, CLAUDE, OPENCODE, COPILOT, QWEN)
