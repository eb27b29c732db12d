"""Agents of OpenAI's Agents SDK with its `ShellTool`: in a container with skills, and on their client's machine.

Each is made as an example of the SDK makes its own (`examples/tools`), with the same classes and arguments.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.agents_sdk import model_of, no_tracing, run_of  # noqa: F401 - a fixture
from tests.kit.fixtures import module_server
from tests.kit.sandboxes import needs_bubblewrap
from tests.kit.sdk import async_sdk_of
from tests.kit.server import Server
from tests.kit.skills import MANIFEST, inline, zipped

if TYPE_CHECKING:  # importing it takes seconds, which all who collect tests would wait for
    from agents import OpenAIResponsesModel, ShellCommandRequest, ShellResult

FOLDER = "/mnt/skills"
ADD = f"shell: {FOLDER}/basic-math-*/add.sh 20 22 | tee sum.txt"
ASK = "Run 'pwd; echo to-out; echo to-err >&2; exit 3' in a shell."

server = module_server("shell_agents", sandbox_memory_bytes=256 * 1024 * 1024)


@pytest.fixture(params=["json", "websocket"])
async def model(server: Server, request: pytest.FixtureRequest) -> AsyncIterator["OpenAIResponsesModel"]:
    """The server's model, over HTTP and over a WebSocket."""
    async with model_of(server, "demo", request.param) as model:
        yield model


class Executor:
    """Runs commands on this machine, as the examples do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ran: list[str] = []

    async def __call__(self, request: "ShellCommandRequest") -> "ShellResult":
        import agents

        outputs = []
        for command in request.data.action.commands:
            self.ran.append(command)
            process = await asyncio.create_subprocess_shell(
                command, cwd=self.folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            stdout, stderr = (text.decode() for text in await process.communicate())
            outcome = agents.ShellCallOutcome(type="exit", exit_code=process.returncode)
            outputs.append(agents.ShellCommandOutput(command=command, stdout=stdout, stderr=stderr, outcome=outcome))
        return agents.ShellResult(output=outputs, provider_data={"working_directory": str(self.folder)})


def commands_of(approval: Any) -> Sequence[str]:
    """Return what is to be approved."""
    raw = approval.raw_item
    commands: Sequence[str] = raw["action"]["commands"] if isinstance(raw, dict) else raw.action.commands
    return commands


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("approve", [True, False], ids=["approved", "rejected"])
async def test_a_shell_of_the_client_asks_before_it_runs(
    model: "OpenAIResponsesModel", tmp_path: Path, *, approve: bool, streamed: bool
) -> None:
    """As `shell.py`."""
    import agents

    asked: list[Sequence[str]] = []

    async def on_approval(context: object, approval: object) -> Any:
        asked.append(commands_of(approval))
        return {"approve": approve, "reason": "approved" if approve else "user rejected"}

    executor = Executor(tmp_path)
    agent = agents.Agent(
        name="Shell Assistant",
        model=model,
        instructions="You can run shell commands using the shell tool.",
        tools=[agents.ShellTool(executor=executor, needs_approval=True, on_approval=on_approval)],
        model_settings=agents.ModelSettings(tool_choice="required"),
    )
    result, _ = await run_of(agent, ASK, streamed=streamed)
    command = "pwd; echo to-out; echo to-err >&2; exit 3"
    assert asked == [[command]]
    assert executor.ran == ([command] if approve else [])
    for printed in (str(tmp_path), "to-out", "to-err"):
        assert (printed in result.final_output) is approve


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_run_that_waits_for_a_person_goes_on_from_its_state(
    model: "OpenAIResponsesModel", tmp_path: Path, *, streamed: bool
) -> None:
    """As `shell_human_in_the_loop.py`; the state is kept as text in between."""
    import agents

    executor = Executor(tmp_path)
    agent: Any = agents.Agent(
        name="Shell HITL Assistant",
        model=model,
        instructions="Ask for approval before running commands.",
        tools=[agents.ShellTool(executor=executor, needs_approval=True)],
        model_settings=agents.ModelSettings(tool_choice="required"),
    )
    result, _ = await run_of(agent, ASK, streamed=streamed)
    (interruption,) = result.interruptions
    assert (len(commands_of(interruption)), executor.ran) == (1, [])
    state: Any = await agents.RunState.from_string(agent, result.to_state().to_string())  # type: ignore[attr-defined]
    (interruption,) = state.get_interruptions()
    state.approve(interruption, always_approve=True)
    result, _ = await run_of(agent, state, streamed=streamed)
    assert result.interruptions == []
    assert len(executor.ran) == 1
    assert str(tmp_path) in result.final_output


async def test_a_shell_of_the_client_is_told_its_skills(model: "OpenAIResponsesModel", tmp_path: Path) -> None:
    """As `local_shell_skill.py`: a skill is a folder of the client's."""
    import agents

    (tmp_path / "math").mkdir()
    (tmp_path / "math" / "SKILL.md").write_text(MANIFEST)
    executor = Executor(tmp_path)
    skill: Any = {"name": "basic-math", "description": "Adds numbers.", "path": str(tmp_path / "math")}
    agent = agents.Agent(
        name="Local Shell Agent",
        model=model,
        instructions="Use the available local skill to answer user requests.",
        tools=[agents.ShellTool(environment={"type": "local", "skills": [skill]}, executor=executor)],
        model_settings=agents.ModelSettings(tool_choice="required"),
    )
    result, _ = await run_of(agent, f"Run 'cat {tmp_path}/math/SKILL.md'.", streamed=False)
    assert executor.ran == [f"cat {tmp_path}/math/SKILL.md"]
    assert "Run calculate.py." in result.final_output


@needs_bubblewrap
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", ["inline", "reference"])
async def test_a_container_has_a_skill_and_a_second_agent_works_in_it(
    server: Server, model: "OpenAIResponsesModel", kind: str, *, streamed: bool
) -> None:
    """As `container_shell_inline_skill.py` and `container_shell_skill_reference.py`."""
    import agents

    skill: Any = inline()
    if kind == "reference":
        async with async_sdk_of(server) as client:
            uploaded = await client.skills.create(files=("math.zip", zipped()))
        skill = {"type": "skill_reference", "skill_id": uploaded.id, "version": uploaded.default_version}
    environment: Any = {"type": "container_auto", "network_policy": {"type": "disabled"}, "skills": [skill]}
    first = agents.Agent(
        name="Container Shell Agent",
        model=model,
        instructions="Use the available container skill to answer user requests.",
        tools=[agents.ShellTool(environment=environment)],
        model_settings=agents.ModelSettings(tool_choice="auto"),
    )
    result, _ = await run_of(first, ADD, streamed=streamed)
    assert "42" in result.final_output
    call = next(item.raw_item for item in result.new_items if item.type == "tool_call_item")
    container_id = call["environment"]["container_id"]  # type: ignore[index, call-overload]
    second = agents.Agent(
        name="Container Reference Shell Agent",
        model=model,
        instructions="Reuse the existing shell container and answer concisely.",
        tools=[agents.ShellTool(environment={"type": "container_reference", "container_id": container_id})],
        model_settings=agents.ModelSettings(tool_choice="auto"),
    )
    seen, _ = await run_of(second, f"shell: cat sum.txt; ls {FOLDER}", streamed=streamed)
    assert "42" in seen.final_output
    assert "basic-math-" in seen.final_output
