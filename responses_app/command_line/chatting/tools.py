"""The tools of a chat: those that a file declares, those of the server, and who answers the calls of the former."""

import json
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from responses_app.command_line.base.exits import USAGE, CommandFailed

Item = dict[str, Any]
ANSWERED = {  # the kinds of calls that are answered here, and the kinds of their answers
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
}
SERVER_TOOLS: dict[str, Item] = {
    "code_interpreter": {"type": "code_interpreter", "container": {"type": "auto"}},
    "web_search": {"type": "web_search"},
    "image_generation": {"type": "image_generation"},
}
MAX_OUTPUT = 1024 * 1024  # characters of what a command gives back
COMMAND_SECONDS = 300.0
NOBODY = "The user did not answer this call."


def read_tools(path: str) -> list[Item]:
    """Return the tools that a JSON file declares: a list, or an object with a list `tools`. Raises `CommandFailed`."""
    try:
        found = json.loads(Path(path).read_text())
    except OSError as error:
        raise CommandFailed(f"--tools {path} cannot be read ({error.strerror}).", status=USAGE) from None
    except ValueError as error:
        raise CommandFailed(f"--tools {path} is not JSON ({error}).", status=USAGE) from None
    tools = found.get("tools") if isinstance(found, dict) else found
    if not isinstance(tools, list) or not all(isinstance(tool, dict) and "type" in tool for tool in tools):
        wanted = '[{"type": "function", "name": "get_weather", "parameters": {…}}]'
        raise CommandFailed(f"--tools {path} holds no list of tools like {wanted}.", status=USAGE)
    return tools


def server_tools(names: str) -> list[Item]:
    """Return the server's tools of a list like `code_interpreter,mcp=wiki`. Raises `CommandFailed`."""
    return [_server_tool(name.strip()) for name in names.split(",") if name.strip()]


def _server_tool(name: str) -> Item:
    kind, _, value = name.partition("=")
    if kind in SERVER_TOOLS and not value:
        return SERVER_TOOLS[kind]
    if kind == "mcp" and value:
        return {"type": "mcp", "server_label": value}
    if kind == "file_search" and value:
        return {"type": "file_search", "vector_store_ids": [value]}
    wanted = ", ".join((*SERVER_TOOLS, "mcp=LABEL", "file_search=VECTOR_STORE_ID"))
    raise CommandFailed(f"--server-tools {name} is not known: it takes some of {wanted}.", status=USAGE)


def calls_of(response: Item) -> list[Item]:
    """Return what of a response's output somebody here has to answer: calls, and requests for an approval."""
    kinds = (*ANSWERED, "mcp_approval_request")
    complete = (item for item in response.get("output", ()) if item.get("status") != "incomplete")
    return [item for item in complete if item.get("type") in kinds]


def described(call: Item) -> str:
    """Return a call as people read it; of a server's tool with the server's label."""
    arguments = call.get("arguments", call.get("input", ""))
    label = f"{call['server_label']}." if call.get("server_label") else ""
    return f"{label}{call.get('name', '')}({arguments})"


def answer(call: Item, output: str) -> Item:
    """Return the item that gives a call its output; an approval is given by `yes`."""
    if call["type"] == "mcp_approval_request":
        approves = output.strip().lower() in ("y", "yes")
        return {"type": "mcp_approval_response", "approval_request_id": call["id"], "approve": approves}
    return {"type": ANSWERED[call["type"]], "call_id": call["call_id"], "output": output}


def by_command(command: str) -> Callable[[Item], str]:
    """Return what answers calls by a command: it reads `{"name", "arguments"}` as JSON, and prints the output.

    One that fails is what the model is told, with what it said on standard error.
    """
    words: Sequence[str] = shlex.split(command)
    if not words:
        raise CommandFailed("--run-tools takes a command, like './tools.sh'.", status=USAGE)

    def run(call: Item) -> str:
        given = {"name": call["name"], "arguments": call.get("arguments", call.get("input", ""))}
        try:
            done = subprocess.run(
                words, input=json.dumps(given), capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
            )
        except OSError as error:
            raise CommandFailed(f"--run-tools {command} cannot be run ({error.strerror}).") from None
        except subprocess.TimeoutExpired:
            return f"The tool did not end within {COMMAND_SECONDS:.0f} seconds."
        if done.returncode:
            return f"The tool failed with status {done.returncode}. {done.stderr.strip()}"[:MAX_OUTPUT]
        return done.stdout[:MAX_OUTPUT]

    return run
