"""Commands of a shell in a container, from the host's side: what they print, how they end, and what they try."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from responses_app.extensions.containers.sandbox import session as sessions
from responses_app.extensions.containers.sandbox.cells import KILLED, MAX_TOLD, CommandOutputs, commands_end
from responses_app.extensions.containers.sandbox.inside.respsite_kernel.frames import Frame
from responses_app.extensions.containers.sandbox.launch import find_interpreter
from responses_app.extensions.containers.sandbox.records import (
    CellEnd,
    CommandEnd,
    CommandsEnd,
    ListedFile,
    SandboxError,
)
from responses_app.extensions.containers.sandbox.sandboxes import Sandlock
from responses_app.extensions.containers.sandbox.session import SandboxGone, SandboxSession
from tests.kit.sandboxes import needs_bubblewrap, session_of
from tests.kit.waiting import eventually

in_a_container = [needs_bubblewrap, pytest.mark.asyncio(loop_scope="module")]
END = CommandEnd(KILLED, killed=True)
GONE = "while pgrep tail; do :; done"  # ends once nothing of that name is there


class Told:
    """What was reported of commands."""

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []
        self.came = asyncio.Event()

    def take(self, fields: dict[str, Any]) -> None:
        self.reports.append(fields)
        self.came.set()

    def text(self, place: int = 0, stream: str = "stdout") -> str:
        return "".join(each.get(stream, "") for each in self.reports if each["command_index"] == place)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def container() -> AsyncIterator[SandboxSession]:
    async with session_of() as started:
        yield started


async def run(container: SandboxSession, *commands: str, most: int = 1000, **more: Any) -> tuple[CommandsEnd, Told]:
    told = Told()
    return await container.run_commands(commands, most=most, report=told.take, **more), told


class TestInAContainer:
    pytestmark = in_a_container

    async def test_commands_run_at_once_and_their_streams_are_apart(self, container: SandboxSession) -> None:
        """Neither could end without the other."""
        both = ("mkfifo a 2>&1; echo one; read x < a; exit $x", "until test -p a; do :; done; echo two >&2; echo 3 > a")
        ended, told = await run(container, *both)
        assert (ended.ended, ended.commands) == (CellEnd.DONE, [CommandEnd(3), CommandEnd(0)])
        assert [told.text(0), told.text(1), told.text(1, "stderr")] == ["one\n", "", "two\n"]

    async def test_they_have_the_files_of_code_and_no_input(self, container: SandboxSession) -> None:
        await container.run("open('known.txt', 'w').write('known')")
        ended, told = await run(container, "cat known.txt; cat; pwd; echo made > made.txt")
        assert told.text() == "known/mnt/data\n"
        assert ended.files == [ListedFile("made.txt", 5)]
        assert (await container.run("open('made.txt').read()")).output == "'made\\n'\n"
        _, told = await run(container, "python3 -c 'import sys; print(sys.version_info[0])'; echo $MPLBACKEND")
        assert told.text() == "3\n\n"

    async def test_what_is_printed_is_told_while_the_command_runs(self, container: SandboxSession) -> None:
        told = Told()
        running = asyncio.create_task(
            container.run_commands(["echo first; tail -f /dev/null"], most=100, report=told.take)
        )
        await asyncio.wait_for(told.came.wait(), 10)
        assert told.text() == "first\n"
        running.cancel()  # and it is stopped where nobody waits for it any more
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await run(container, GONE, seconds=10))[0].ended is CellEnd.DONE

    async def test_one_that_takes_too_long_is_killed_with_its_group(self, container: SandboxSession) -> None:
        ended, told = await run(container, "echo begun; tail -f /dev/null & tail -f /dev/null", "exit 4", seconds=0.3)
        assert (ended.ended, ended.variables_lost) == (CellEnd.TIMED_OUT, False)
        assert ended.commands == [END, CommandEnd(4)]
        assert told.text() == "begun\n"
        assert (await run(container, GONE, seconds=10))[0].ended is CellEnd.DONE

    async def test_one_that_prints_for_ever_is_stopped_and_little_is_told(self, container: SandboxSession) -> None:
        ended, told = await run(container, "yes", most=100)
        assert (ended.ended, ended.commands) == (CellEnd.TOO_MUCH_OUTPUT, [END])
        text = told.text()
        assert text.startswith("y\n" * 25)
        assert text.endswith("y\n" * 25)
        assert "characters left out …]" in text
        assert len(text) < 200

    async def test_one_that_takes_too_much_memory_is_stopped(self, container: SandboxSession) -> None:
        """Each process stays below its own limit; together they do not."""
        code = "import time; x = b'x' * (80 << 20); time.sleep(60)"
        ended, _ = await run(container, *(f'python3 -c "{code}"' for _ in range(4)))
        assert (ended.ended, ended.variables_lost) == (CellEnd.TOO_MUCH_MEMORY, True)
        assert ended.commands == [END] * 4
        assert (await run(container, "echo on"))[1].text() == "on\n"

    @pytest.mark.parametrize(
        "command",
        [
            "dd if=/dev/zero of=full bs=1M count=64; rm full",  # fills the disk
            "kill -9 $$",
            "exec 1>&- 2>&-; true",  # closes its pipes
            "sleep 60 & disown; exit 0",
            "ulimit -v 1 || true; exit 3",
            "trap '' TERM INT HUP; exit 0",
            "setsid sleep 60 & exit 0",
            "nosuchcommand",
            "",
            "printf '\\xff\\xfe\\x00'",
            "mkdir -p a/b/c; cd a/b/c; rm -rf /mnt/data/a; pwd",
            "stop() { kill -STOP $$; }; (sleep 0.05; kill -CONT $$) & stop",
        ],
    )
    async def test_what_commands_try(self, container: SandboxSession, command: str) -> None:
        """Each ends, and the next call finds the container as it was."""
        ended, _ = await run(container, command, seconds=10)
        assert ended.ended is CellEnd.DONE
        assert (await run(container, "echo on"))[1].text() == "on\n"
        assert (await container.run("1 + 1")).output == "2\n"

    async def test_a_fork_bomb_is_bounded_and_ends_with_its_group(self) -> None:
        async with session_of() as container:
            ended, _ = await run(container, "f() { f | f & wait; }; f", seconds=1)
            assert ended.commands == [END]
            assert (await container.run("1 + 1")).output == "2\n"

    async def test_who_kills_the_kernel_loses_its_variables(self, container: SandboxSession) -> None:
        own = await container.run("import os; kept = 1; os.getpid()")
        ended, _ = await run(container, f"kill -9 {own.output.strip()}; sleep 60")
        assert (ended.variables_lost, len(ended.commands)) == (True, 1)
        assert (await container.run("kept")).error == "NameError"

    async def test_who_kills_its_parent_ends_the_container(self) -> None:
        async with session_of() as container:
            with pytest.raises(SandboxGone):
                await run(container, "kill -9 $PPID; sleep 60")

    async def test_nothing_runs_between_calls(self, container: SandboxSession) -> None:
        """What is left in the background is stopped, and goes on with the next call."""
        await run(container, "rm -f late; (while ! test -e go; do :; done; echo late > late) > /dev/null 2>&1 &")
        await container.put("go", b"")
        await eventually(lambda: container._rest is not None and container._rest.is_settled)
        assert "late" not in {file.path for file in await container.list_files()}
        await run(container, "until test -s late; do :; done", seconds=10)
        assert "late" in {file.path for file in await container.list_files()}

    async def test_commands_that_are_too_large(self, container: SandboxSession) -> None:
        with pytest.raises(SandboxError, match="larger than"):
            await run(container, "x" * (sessions.MAX_CODE + 1))


@pytest.mark.needs("sandlock")
async def test_sandlock_runs_commands() -> None:
    async with session_of(sandbox=Sandlock(), python=find_interpreter("/usr/bin/python3")) as session:
        ended, told = await run(session, "echo $((6 * 7)); ls nothing", "sleep 60", seconds=2)
    assert (ended.ended, ended.commands) == (CellEnd.TIMED_OUT, [CommandEnd(2), END])
    assert (told.text(), "nothing" in told.text(0, "stderr")) == ("42\n", True)


# What is told, without a container.


@given(
    st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(max_size=40)), max_size=30),
    st.integers(0, 60),
)
def test_what_is_told_is_bounded_and_has_beginning_and_end(parts: Sequence[tuple[str, bytes]], most: int) -> None:
    told: dict[str, str] = {"stdout": "", "stderr": ""}

    def report(fields: dict[str, Any]) -> None:
        assert fields.pop("command_index") == 0
        assert all(fields.values())
        for stream, text in fields.items():
            told[stream] += text

    async def play() -> None:
        outputs = CommandOutputs(1, most, report)
        for stream, content in parts:
            outputs.take(Frame({"command": 0, "stream": stream}, content))
        outputs.end()

    asyncio.run(play())
    whole = {
        stream: b"".join(content for each, content in parts if each == stream).decode(errors="replace")
        for stream in told
    }
    if sum(map(len, whole.values())) <= most:
        assert told == whole
    else:
        notes = [text for text in told.values() if "characters left out" in text]
        assert len(notes) == 1
        assert sum(map(len, told.values())) <= most + 50


async def test_what_a_warden_cannot_say() -> None:
    """Code may have made it say anything: what is no output of a command is left out, and counts all the same."""
    told = Told()
    outputs = CommandOutputs(1, MAX_TOLD, told.take)
    for header in (
        {"command": 1},
        {"command": -1, "stream": "stdout"},
        {"command": "0"},
        {"command": 0, "stream": "x"},
    ):
        outputs.take(Frame(header, b"x"))
    outputs.end()
    assert told.reports == []
    assert outputs.size > 4
    for said in (None, [], [[1]], [[300, False]], [["1", True]], "x", [[0, 1]]):
        assert commands_end({"ended": said}, 1, CellEnd.DONE, []).commands == [END]
    assert commands_end({"ended": [[0, False]] * 5}, 2, CellEnd.DONE, []).commands == [CommandEnd(0)] * 2
