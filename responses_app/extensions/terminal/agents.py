"""The coding agents that `respsite configure` knows, and Open WebUI: the settings of each, and where it keeps them.

Every text here is what the agent's own file holds word for word (or what a shell exports), and the page of the agent in
the documentation shows it. No text has an API key in it: each agent is told where to find one when it runs.
"""

import json
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from responses_app.command_line.endpoint import USAGE, CommandFailed
from responses_app.protocol.errors import FOREIGN_SEALS, NOTE

VERSION = "/v1"  # how the base URL of an SDK ends
MAX_OUTPUT = 32_000  # tokens: what OpenCode asks for where a model's bound is not smaller
OUTPUT_SHARE = 4  # and no more than a quarter of the model's length
SEALS = f"{FOREIGN_SEALS}: {NOTE}"  # the header that lets a session go on which began elsewhere
COMPACTED_SHARE = 0.75  # of the model's length: where Open WebUI summarizes a chat


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetServer:
    """A server, as an agent is told of it."""

    base_url: str  # as OpenAI's SDKs have it
    models: tuple[str, ...]  # that it serves, as far as they are known; an agent begins with the first
    # The first model's length in tokens; None: what the agent takes a model for that it does not know.
    context: int | None
    key_variable: str  # the environment variable with the API key, where the agent runs; it may be unset

    @property
    def model(self) -> str:
        """The model that an agent begins with."""
        return self.models[0]

    @property
    def key_command(self) -> str:
        """What a shell runs to print the key. Agents refuse an empty one; a server that wants none takes any."""
        return f"echo ${{{self.key_variable}:-none}}"


class Format(Enum):
    """How an agent is configured."""

    TOML = "toml"
    JSON = "json"
    SHELL = "sh"  # by environment variables


@dataclass(frozen=True, slots=True, kw_only=True)
class CodingAgent:
    """A coding agent, or Open WebUI."""

    name: str  # as it is typed behind `respsite configure`
    title: str  # as its makers write it
    speaks: str  # the API
    format: Format
    text: Callable[[TargetServer], str]  # what it has to be told
    place: Callable[[Mapping[str, str], Path], Path] | None = None  # its file, by environment and home; None for none
    # A table in the file whose entries stay as they are where they are there: a person may have put a key into it.
    kept: str = ""
    # A setting with a header on each line: the new ones are put behind those that are there.
    headers: str = ""
    # Variables that count more than what is written, in the table `env` of the file too.
    overruled_by: tuple[str, ...] = ()


def _codex(target: TargetServer) -> str:
    return f"""\
model = {_quoted(target.model)}
model_provider = "respsite"

[model_providers.respsite]
name = "respsite"
base_url = {_quoted(target.base_url)}
wire_api = "responses"
supports_websockets = true
# Lets a session go on here although OpenAI or another server has encrypted some of its items.
http_headers = {{ {FOREIGN_SEALS} = "{NOTE}" }}

# The key, if the server wants one. Codex asks for the server's catalogue only where a command tells it the key.
[model_providers.respsite.auth]
command = "sh"
args = ["-c", {_quoted(target.key_command)}]
"""


def _quoted(text: str) -> str:
    """Return a text as TOML's basic string, whose escapes for what can stand in a name or a URL are those of JSON."""
    return json.dumps(text, ensure_ascii=False)


def _claude(target: TargetServer) -> str:
    if not target.base_url.endswith(VERSION):
        raise CommandFailed(
            f"Claude Code asks for {VERSION}/messages below its base URL, so a server's base URL has to end with "
            f"{VERSION}, and {target.base_url} does not.",
            status=USAGE,
        )
    # What it asks for by these names are other models for it: for titles, for sub-agents, for `/model opus`.
    names = ("ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{size}_MODEL" for size in ("OPUS", "SONNET", "HAIKU", "FABLE")))
    variables = {"ANTHROPIC_BASE_URL": target.base_url.removesuffix(VERSION), **dict.fromkeys(names, target.model)}
    variables["ANTHROPIC_CUSTOM_HEADERS"] = SEALS
    if target.context is not None:
        variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(target.context)
    return _json({"apiKeyHelper": target.key_command, "env": variables})


def _opencode(target: TargetServer) -> str:
    # One that reasons: then OpenCode sends its reasoning back, and the server continues token by token.
    models: dict[str, Any] = {name: {"name": name, "reasoning": True} for name in target.models}
    if target.context is not None:
        output = min(MAX_OUTPUT, target.context // OUTPUT_SHARE)
        models[target.model]["limit"] = {"context": target.context, "output": output}
    chosen = f"respsite/{target.model}"
    provider = {
        "npm": "@ai-sdk/openai",  # the Responses API; `@ai-sdk/openai-compatible` is Chat Completions
        "name": "respsite",
        "options": {
            "baseURL": target.base_url,
            "apiKey": f"{{env:{target.key_variable}}}",
            "headers": {FOREIGN_SEALS: NOTE},
        },
        "models": models,
    }
    whole = {"model": chosen, "small_model": chosen, "provider": {"respsite": provider}}
    return _json({"$schema": "https://opencode.ai/config.json", **whole})


def _qwen(target: TargetServer) -> str:
    models: list[dict[str, Any]] = [
        {"id": name, "name": name, "baseUrl": target.base_url, "envKey": target.key_variable} for name in target.models
    ]
    if target.context is not None:
        models[0]["generationConfig"] = {"contextWindowSize": target.context}
    return _json(
        {
            "modelProviders": {"openai": models},
            "security": {"auth": {"selectedType": "openai"}},
            "model": {"name": target.model},
            # For a server that wants no key: Qwen Code refuses to start without one. The environment's goes before it.
            "env": {target.key_variable: "none"},
        }
    )


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _copilot(target: TargetServer) -> str:
    variables = {
        "COPILOT_OFFLINE": "true",
        "COPILOT_PROVIDER_BASE_URL": target.base_url,
        "COPILOT_PROVIDER_WIRE_API": "responses",
        "COPILOT_PROVIDER_TRANSPORT": "websockets",
        "COPILOT_MODEL": target.model,
        "COPILOT_PROVIDER_HEADERS": SEALS,
    }
    if target.context is not None:
        variables["COPILOT_PROVIDER_MAX_PROMPT_TOKENS"] = str(target.context)
    return _exports(variables, "COPILOT_PROVIDER_API_KEY", target)


def _aider(target: TargetServer) -> str:
    variables = {"AIDER_MODEL": f"openai/{target.model}", "AIDER_OPENAI_API_BASE": target.base_url}
    return _exports(variables, "AIDER_OPENAI_API_KEY", target)


def _open_webui(target: TargetServer) -> str:
    # The names in the plural are its own: in a profile, the others would be read by every program for OpenAI's API.
    variables = {
        "OPENAI_API_BASE_URLS": target.base_url,
        # It would offer embedding models for chats, too.
        "OPENAI_API_CONFIGS": json.dumps({"0": {"model_ids": target.models}}, ensure_ascii=False),
        "ENABLE_OLLAMA_API": "false",
        **dict.fromkeys((f"ENABLE_{task}_GENERATION" for task in ("TITLE", "TAGS", "FOLLOW_UP")), "false"),
        "DEFAULT_MODEL_METADATA": json.dumps({"capabilities": {"builtin_tools": False}}),
    }
    if target.context is not None:
        variables["ENABLE_CONTEXT_COMPACTION"] = "true"
        variables["CONTEXT_COMPACTION_TOKEN_THRESHOLD"] = str(int(target.context * COMPACTED_SHARE))
    return _exports(variables, "OPENAI_API_KEYS", target)


def _exports(variables: Mapping[str, str], key: str, target: TargetServer) -> str:
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
    return "".join([*lines, f'export {key}="${{{target.key_variable}:-none}}"\n'])


def _below(variable: str, folder: str, *inside: str) -> Callable[[Mapping[str, str], Path], Path]:
    """Return what finds a file in the folder that a variable names, and by default in one of the home."""

    def place(environ: Mapping[str, str], home: Path) -> Path:
        return Path(environ.get(variable) or home / folder, *inside)

    return place


def _opencode_place(environ: Mapping[str, str], home: Path) -> Path:
    folder = _below("XDG_CONFIG_HOME", ".config", "opencode")(environ, home)
    commented = folder / "opencode.jsonc"
    # OpenCode reads both, and this one counts more.
    return commented if os.path.exists(commented) else folder / "opencode.json"


AGENTS: Mapping[str, CodingAgent] = {
    agent.name: agent
    for agent in (
        CodingAgent(
            name="codex",
            title="Codex CLI",
            speaks="Responses",
            format=Format.TOML,
            text=_codex,
            place=_below("CODEX_HOME", ".codex", "config.toml"),
        ),
        CodingAgent(
            name="claude",
            title="Claude Code",
            speaks="Messages",
            format=Format.JSON,
            text=_claude,
            place=_below("CLAUDE_CONFIG_DIR", ".claude", "settings.json"),
            headers="env.ANTHROPIC_CUSTOM_HEADERS",
            overruled_by=("ANTHROPIC_AUTH_TOKEN",),
        ),
        CodingAgent(
            name="opencode",
            title="OpenCode",
            speaks="Responses",
            format=Format.JSON,
            text=_opencode,
            place=_opencode_place,
        ),
        CodingAgent(
            name="copilot",
            title="GitHub Copilot CLI",
            speaks="Responses",
            format=Format.SHELL,
            text=_copilot,
        ),
        CodingAgent(
            name="qwen",
            title="Qwen Code",
            speaks="Chat Completions",
            format=Format.JSON,
            text=_qwen,
            place=_below("QWEN_HOME", ".qwen", "settings.json"),
            kept="env",
        ),
        CodingAgent(
            name="aider",
            title="Aider",
            speaks="Chat Completions",
            format=Format.SHELL,
            text=_aider,
        ),
        CodingAgent(
            name="open-webui",
            title="Open WebUI",
            speaks="Chat Completions",
            format=Format.SHELL,
            text=_open_webui,
        ),
    )
}
