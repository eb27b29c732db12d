"""A container from the host's side: cells, what they leave and how they end. All share one, and restart its kernel."""

import asyncio
import contextlib
import errno
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from responses_app.extensions.containers.sandbox import processes, watching
from responses_app.extensions.containers.sandbox import session as sessions
from responses_app.extensions.containers.sandbox.cells import MAX_FILES, MAX_IMAGE_BYTES, MAX_IMAGES
from responses_app.extensions.containers.sandbox.launch import (
    INSIDE,
    BaseSandbox,
    Interpreter,
    Launch,
    find_interpreter,
    start_process,
)
from responses_app.extensions.containers.sandbox.records import CellEnd, Execution, ListedFile, SandboxError
from responses_app.extensions.containers.sandbox.sandboxes import Bubblewrap
from responses_app.extensions.containers.sandbox.session import SandboxGone, SandboxSession
from responses_app.extensions.containers.sandbox.settings import KEPT_OUTPUT, SandboxSettings
from responses_app.protocol.setting import MIB
from tests.kit.sandboxes import SMALL, needs_bubblewrap, plain_python, session_of
from tests.kit.waiting import eventually

SCIENCE = Path(__file__).resolve().parents[4] / ".venv-sandbox/bin/python"
pytestmark = [needs_bubblewrap, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def container() -> AsyncIterator[SandboxSession]:
    async with session_of() as started:
        yield started


async def printed(container: SandboxSession, code: str) -> str:
    """Run a cell that ends by itself; return what it printed."""
    done = await container.run(code)
    assert done.ended is CellEnd.DONE
    return done.output


async def test_variables_and_modules_live_over_cells(container: SandboxSession) -> None:
    await printed(container, "import math\ndef twice(x): return 2 * x\nradius = 2")
    assert await printed(container, "twice(math.floor(math.pi * radius))") == "12\n"


async def test_the_value_of_the_last_expression_is_shown(container: SandboxSession) -> None:
    assert await printed(container, "x = 1\n[x, 'ü']") == "[1, 'ü']\n"
    assert await printed(container, "x;") == ""
    assert await printed(container, "None") == ""
    assert await printed(container, "") == ""


async def test_output_is_in_order_whoever_wrote_it(container: SandboxSession) -> None:
    code = "import sys\nprint('one')\n!echo two\nprint('three', file=sys.stderr)\nprint('four', end='')"
    assert await printed(container, code) == "one\ntwo\nthree\nfour"


async def test_an_error_is_told_with_its_line_and_without_ours(container: SandboxSession) -> None:
    done = await container.run("def f():\n    return 1 / 0\nf()")
    assert done.error == "ZeroDivisionError"
    assert "return 1 / 0" in done.output
    assert "respsite_kernel" not in done.output
    assert (await container.run("x = = 1")).error == "SyntaxError"
    assert await printed(container, "1 + 1") == "2\n"


async def test_what_models_know_from_notebooks(container: SandboxSession) -> None:
    assert await printed(container, "%matplotlib inline\n!echo hello\n3") == "hello\n3\n"
    assert await printed(container, "import asyncio\nawait asyncio.sleep(0, 'awaited')") == "'awaited'\n"
    done = await container.run("class Picture:\n    def _repr_png_(self): return b'png!'\nPicture()")
    assert [(image.media_type, image.content) for image in done.images] == [("image/png", b"png!")]
    assert done.output == ""


@pytest.mark.skipif(not SCIENCE.exists(), reason="there is no .venv-sandbox: make install-sandbox makes it")
async def test_figures_are_images_each_once() -> None:
    async with session_of(
        replace(SMALL, sandbox_memory_bytes=512 * MIB), python=find_interpreter(str(SCIENCE))
    ) as container:
        plots = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nplt.plot([2, 1])"
        for code, images in ((plots, 2), ("fig, ax = plt.subplots(); fig", 1), ("plt.bar([1], [2]); plt.close()", 0)):
            done = await container.run(code)
            assert [image.media_type for image in done.images] == ["image/png"] * images
            assert all(image.content.startswith(b"\x89PNG") for image in done.images)


async def test_it_sees_nothing_of_the_environment_of_the_server(container: SandboxSession) -> None:
    names = await printed(container, "import os\nsorted(os.environ)")
    assert "DATA_DIR" not in names
    assert "HOME" in names


async def test_calls_of_the_system_that_nobody_has_judged_are_none(container: SandboxSession) -> None:
    """467 is `open_tree_attr`, of Linux 6.15."""
    code = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    code += "[(libc.syscall(number, -1, 0, 0, 0), ctypes.get_errno()) for number in (467, 468, 400, 999)]"
    assert await printed(container, code) == f"{[(-1, errno.ENOSYS)] * 4}\n"


async def test_files_go_in_and_come_out(container: SandboxSession) -> None:
    await container.put("in/data.csv", b"a,b\n1,2\n")
    code = "open('/mnt/data/out.txt', 'w').write(open('in/data.csv').read().upper());"
    done = await container.run(code)
    assert list(done.files) == [ListedFile("out.txt", 8)]
    assert (await container.get_part("out.txt", 0, 1000)).content == b"A,B\n1,2\n"
    assert {file.path for file in await container.list_files()} >= {"out.txt", "in/data.csv"}
    await container.remove("out.txt")
    with pytest.raises(SandboxError, match="No such file"):
        await container.get_part("out.txt", 0, 1000)


@pytest.mark.parametrize("path", ["", "../x", "/etc/passwd", "a//b", "a/../../b", "x\0y", "n" * 2000])
async def test_paths_stay_in_the_work_folder(container: SandboxSession, path: str) -> None:
    with pytest.raises(SandboxError, match="not the path of a file"):
        await container.put(path, b"x")


async def test_what_only_looks_like_a_file_is_not_read(container: SandboxSession) -> None:
    await printed(container, "import os\nos.mkfifo('pipe'); os.symlink('/etc/localtime', 'link'); os.mkdir('folder')")
    for name in ("pipe", "link", "folder"):
        with pytest.raises(SandboxError):
            await container.get_part(name, 0, 1000)
    assert [file.path for file in await container.list_files() if file.path in ("pipe", "link")] == []


async def test_names_that_are_no_text_are_left_out(container: SandboxSession) -> None:
    done = await container.run("open(b'\\xff\\xfe', 'w').close(); open('named', 'w').close()")
    assert [file.path for file in done.files] == ["named"]
    assert "named" in [file.path for file in await container.list_files()]


async def test_a_cell_that_takes_too_long_is_interrupted_and_leaves_the_variables(container: SandboxSession) -> None:
    await printed(container, "kept = 7")
    done = await container.run("import time\nprint('begun', flush=True)\ntime.sleep(60)", seconds=3)
    assert done.ended is CellEnd.TIMED_OUT
    assert done.output.startswith("begun\n")
    assert not done.variables_lost
    assert await printed(container, "kept") == "7\n"


async def test_one_that_does_not_let_itself_be_interrupted_is_killed_and_files_stay(
    container: SandboxSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "GRACE_SECONDS", 0.5)
    await printed(container, "open('stays.txt', 'w').write('yes')\nkept = 7")
    code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nsignal.sigwait([signal.SIGUSR1])"
    done = await container.run(code, seconds=3)
    assert (done.ended, done.variables_lost) == (CellEnd.TIMED_OUT, True)
    assert (await container.run("kept")).error == "NameError"
    assert await printed(container, "open('stays.txt').read()") == "'yes'\n"


async def test_a_kernel_that_dies_is_replaced(container: SandboxSession) -> None:
    done = await container.run("import os\nos._exit(3)")
    assert (done.ended, done.variables_lost) == (CellEnd.DIED, True)
    assert "with status 3" in done.output
    assert (await container.run("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")).ended is CellEnd.DIED
    assert await printed(container, "1") == "1\n"
    assert (await container.run("raise SystemExit(4)")).ended is CellEnd.DONE


async def test_folders_that_are_deeper_than_python_calls_itself_end_no_container() -> None:
    deep = "for _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\nos.chdir('/mnt/data')"
    async with session_of() as container:
        done = await container.run(f"import os\nx = 7\nopen('top', 'w').close()\n{deep}")
        assert (done.ended, [each.path for each in done.files]) == (CellEnd.DONE, ["top"])
        assert [each.path for each in await container.list_files()] == ["top"]
        assert await printed(container, "x") == "7\n"


async def test_a_fork_that_comes_to_the_end_of_its_cell_is_no_second_kernel(container: SandboxSession) -> None:
    await printed(container, "import os, time\nmine = os.getpid()\nforked = os.fork()\nif not forked: time.sleep(0.2)")
    assert await printed(container, "os.waitpid(forked, 0)[1], os.getpid() == mine") == "(0, True)\n"


async def test_a_cancelled_call_stops_its_cell(container: SandboxSession) -> None:
    call = asyncio.create_task(container.run("open('begun', 'w').close()\nwhile True: pass"))
    await eventually(lambda: not call.done() and container.memory() > 0)
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await printed(container, "1") == "1\n"


async def test_processes_stand_still_between_calls(container: SandboxSession) -> None:
    """Of the kernel and of what its code has started the system says that they are stopped."""

    def stopped() -> int:
        pids = processes.tree(container._process.pid)
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids]
        return stats.count("T")

    spins = "def spin():\n    while True: pass\nthreading.Thread(target=spin, daemon=True).start()"
    await printed(container, f"import subprocess, threading\nsleeps = subprocess.Popen(['sleep', '60'])\n{spins}")
    await eventually(lambda: stopped() == 2)
    assert await printed(container, "sleeps.poll() is None") == "True\n"
    await container.restart()


async def test_output_keeps_its_beginning_and_its_end(container: SandboxSession) -> None:
    done = await container.run("print('begin')\nfor n in range(50000): print(n)\nprint('end')")
    assert done.ended is CellEnd.DONE
    assert done.output.startswith("begin\n0\n")
    assert done.output.endswith("49999\nend\n")
    assert "bytes left out" in done.output
    assert len(done.output) < KEPT_OUTPUT + 100


async def test_a_warden_that_does_not_answer_ends_with_all_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    async with session_of() as container:
        monkeypatch.setattr(sessions, "ANSWER_SECONDS", 0.5)
        monkeypatch.setattr(sessions, "GRACE_SECONDS", 0.5)
        with pytest.raises(SandboxGone):
            await container.run("import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)", seconds=3)
        assert not container.is_alive
        with pytest.raises(SandboxGone):
            await container.run("1")


async def test_one_that_lies_harms_nobody_else() -> None:
    lie = (
        "import gc, json, socket, struct\n"
        "said = json.dumps({'files': [['../../x', 1], ['ok', -1], 3], 'images': [['text/html', 5], 'x'], 'error': 5})\n"
        "for each in gc.get_objects():\n"
        "    if isinstance(each, socket.socket) and each.fileno() >= 0:\n"
        "        each.sendall(struct.pack('>II', len(said), 5) + said.encode() + b'hello')\n"
    )
    async with session_of() as container:
        done = await container.run(lie)
        assert (done.images, done.error) == ([], None)
        assert {file.path for file in done.files} <= {"ok"}


class Liar(BaseSandbox):
    """Has a warden that answers each question with one frame: `said` is Python for its header, `payload` a size."""

    name = "liar"

    def __init__(self, said: str, payload: int) -> None:
        self._code = (
            "import socket, struct; host = socket.socket(fileno=0)\n"
            "def say(said, size): host.sendall(struct.pack('>II', len(said), size) + said + bytes(size))\n"
            f"say(b'{{}}', 0)\nwhile host.recv(65536): say({said}, {payload})"
        )

    def missing(self) -> None:
        return None

    def launch(
        self, interpreter: Interpreter, settings: SandboxSettings, *, uid: int | None, skills: Path | None = None
    ) -> Launch:
        return Launch([sys.executable, "-S", "-c", self._code])


async def lied_to(said: str, payload: int = 0) -> Execution:
    """Return what the host makes of a warden's lie."""
    async with session_of(sandbox=Liar(said, payload)) as session:
        return await session.run("1")


async def test_numbers_of_a_warden_that_are_none() -> None:
    told = await lied_to(f'b\'{{"files": [["a", {"9" * 99}], ["b", -1], ["c", 1e999], ["d", 4]]}}\'')
    assert told.files == [ListedFile("d", 4)]


async def test_more_files_and_images_than_there_can_be() -> None:
    images = "b'{\"images\": [' + b','.join([b'[\"image/png\", 1]'] * 9999) + b']}'"
    assert len((await lied_to(images, payload=9999)).images) == MAX_IMAGES
    files = "b'{\"files\": [' + b','.join(b'[\"%d\", 1]' % each for each in range(9999)) + b']}'"
    assert len((await lied_to(files)).files) == MAX_FILES


@pytest.mark.parametrize(
    ("said", "payload"), [("b'{\"a\":' + b'[' * 99999 + b']' * 99999 + b'}'", 0), ("b'{}'", MAX_IMAGE_BYTES + 1)]
)
async def test_what_would_take_much_to_read_ends_the_container(said: str, payload: int) -> None:
    with pytest.raises(SandboxGone):
        await lied_to(said, payload)


async def test_a_start_that_is_cut_leaves_nothing_behind() -> None:
    for step in range(8):
        starting = asyncio.create_task(SandboxSession.start(Bubblewrap(), plain_python(), SMALL))
        await asyncio.sleep(0.0007 * step)  # the moment is not known in which it has a process that is nobody's yet
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await starting).close()
    await eventually(lambda: not left_over())


async def test_a_warden_whose_host_is_gone_ends_all_even_if_nobody_ends_it() -> None:
    """As where the host is killed before bwrap has itself ended with it: all but the first process live on then."""
    started = await start_process(Bubblewrap(), plain_python(), SMALL)
    reading = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
        lambda: asyncio.StreamReaderProtocol(reading), started.channel
    )
    assert await reading.read(1), "it is ready, and its kernel is stopped"
    inside = processes.first_below(started.process.pid)
    assert inside is not None
    os.kill(inside, signal.SIGSTOP)  # it ends nothing now
    try:
        assert len([pid for pid in processes.tree(inside) if _lives(pid)]) == 3, "with the warden and its kernel"
        transport.close()
        await eventually(lambda: [pid for pid in processes.tree(inside) if _lives(pid)] == [inside])
    finally:
        os.kill(inside, signal.SIGKILL)
        await asyncio.to_thread(started.process.wait)
        os.close(started.output)
        started.user.close()


def _lives(pid: int) -> bool:
    seen = processes.seen(pid)
    return seen is not None and not seen.has_ended


def left_over() -> list[str]:
    """Return what was started for a container of ours and has lost its parent."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            is_ours = f"{INSIDE}\0" in (path.parent / "cmdline").read_text()
            if is_ours and path.read_text().rpartition(")")[2].split()[1] == "1":
                found.append(path.parent.name)
    return found


@pytest.mark.parametrize(
    "code",
    ["for each in range(400): open(f'{each}', 'w').close()", "for each in range(400): os.mkdir(f'/dev/shm/{each}')"],
)
async def test_a_container_may_have_so_many_files(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(watching, "MAX_FILES_IN_MEMORY", 300)
    async with session_of() as container:
        with pytest.raises(SandboxGone, match="too many files"):
            await container.run(f"import os, time\n{code}\ntime.sleep(20)")


async def test_a_container_may_have_so_many_timers(container: SandboxSession) -> None:
    code = "import ctypes\nlibc, timer = ctypes.CDLL(None), ctypes.c_void_p()\n"
    code += "sum(libc.timer_create(1, None, ctypes.byref(timer)) == 0 for _ in range(2000))"
    assert 1000 < int(await printed(container, code)) <= 1024  # containers beside it may have some: all are one user's
    await container.restart()
