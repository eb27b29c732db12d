"""Parts of the sandbox that need no container: what is kept of an output, the filter, the interpreter."""

import errno
import fcntl
import os
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_app.extensions.containers.code_interpreter import notes_of
from responses_app.extensions.containers.endpoints import content_type_of
from responses_app.extensions.containers.sandbox import disk, seccomp
from responses_app.extensions.containers.sandbox.cells import Output
from responses_app.extensions.containers.sandbox.choosing import choose
from responses_app.extensions.containers.sandbox.disk import Folders, remove_those_of_the_dead
from responses_app.extensions.containers.sandbox.launch import InterpreterError, find_interpreter
from responses_app.extensions.containers.sandbox.records import CellEnd, Execution
from responses_app.extensions.containers.sandbox.settings import SandboxSettings
from responses_app.protocol.setting import KIB, MIB


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(2, 64))
def test_an_output_keeps_as_much_as_it_may_from_both_ends(parts: list[bytes], most: int) -> None:
    output = Output(most)
    for part in parts:
        output.add(part)
    whole = b"".join(part.replace(b"\x80", b"x") for part in parts)
    assert output.size == len(whole)
    half = most // 2
    if len(whole) <= 2 * half:
        assert output.text() == b"".join(parts).decode(errors="replace")
    else:
        begin, _, rest = output.text().partition("\n[… ")
        assert begin == b"".join(parts)[:half].decode(errors="replace")
        assert rest.endswith(b"".join(parts)[-half:].decode(errors="replace"))
        assert f"{len(whole) - 2 * half} bytes left out" in rest


@pytest.mark.parametrize("local_sockets", [True, False])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_jumps_of_the_filter_end_inside_of_it(machine: str, local_sockets: bool) -> None:
    program = seccomp.program(machine, local_sockets=local_sockets)
    steps = list(struct.iter_unpack("=HBBI", program))
    for place, (code, then, otherwise, _) in enumerate(steps):
        if code & 0x07 == 0x05:  # a jump
            assert place + 1 + max(then, otherwise) < len(steps)
    assert steps[-1][0] == 0x06  # a return
    assert len(steps) < 4096  # BPF_MAXINSNS


def judged(program: bytes, audit: int, number: int) -> int:
    """Return what a filter says of a call without arguments, as the kernel would run it."""
    about = struct.pack("=IIQ6Q", number, audit, 0, *[0] * 6)
    steps, place, value = list(struct.iter_unpack("=HBBI", program)), 0, 0
    while True:
        code, then, otherwise, operand = steps[place]
        place += 1
        if code == 0x06:
            return int(operand)
        if code == 0x20:
            (value,) = struct.unpack_from("=I", about, operand)
        else:
            holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[code]
            place += then if holds else otherwise


@pytest.mark.parametrize("local_sockets", [True, False])
@pytest.mark.parametrize(("machine", "audit", "last_own"), [("x86_64", 0xC000003E, 334), ("aarch64", 0xC00000B7, 294)])
def test_calls_that_are_not_known_are_none(machine: str, audit: int, last_own: int, local_sockets: bool) -> None:
    program = seccomp.program(machine, local_sockets=local_sockets)
    allowed, refused, none = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
    said = {number: judged(program, audit, number) for number in range(1000)}
    assert all(said[number] == none for number in (*range(last_own + 1, 424), *range(467, 1000)))
    assert [number for number in range(last_own + 1) if said[number] == none] == []
    assert (said[424], said[425], said[466]) == (allowed, refused, allowed)
    assert judged(program, audit, 2**30 + 5) == refused


def test_what_cannot_be_an_interpreter(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\necho '[]'\n")
    (tmp_path / "python").chmod(0o755)
    for path in (tmp_path / "python", tmp_path / "nothing", Path("/bin/true")):
        with pytest.raises(InterpreterError, match="is not a Python"):
            find_interpreter(str(path))


def test_a_venv_is_seen_with_what_it_was_made_of() -> None:
    folders = find_interpreter(sys.executable).folders
    prefixes = [prefix for prefix in (sys.prefix, sys.base_prefix) if not prefix.startswith("/usr")]
    assert set(prefixes) <= set(folders)


async def test_without_a_fitting_python_the_setting_is_named() -> None:
    choice = await choose("auto", "/nowhere/python")
    assert choice.sandbox is None
    assert "SANDBOX_PYTHON" in choice.problem


def test_folders_of_the_dead_are_removed_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "responses_app.extensions.containers.sandbox.disk"
    script = f"import os; from {module} import Folders; (Folders().make() / 'a').touch()"
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    for end, status in (("pass", 0), ("os.kill(os.getpid(), 9)", -9)):
        assert list(tmp_path.iterdir()) == [], "one that ends by itself leaves nothing"
        done = subprocess.run(
            [sys.executable, "-c", f"{script}; {end}"], env=environ, check=False, stderr=subprocess.PIPE
        )
        assert (done.returncode, done.stderr) == (status, b"")
    assert len(list(tmp_path.glob("*/*/a"))) == 1
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "respsite-containers-link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "respsite-containers-new").mkdir()
    ours, others = Folders(), Folders()
    mine, theirs = ours.make(), others.make()
    assert mine.is_dir()
    assert theirs.is_dir()
    assert list(tmp_path.glob("*/*/a")) == []
    assert (tmp_path / "respsite-containers-new").is_dir(), "its process may be about to lock it"
    os.utime(tmp_path / "respsite-containers-new", (0, 0))
    remove_those_of_the_dead()
    # By their names: what else in this process makes a temporary file makes it here meanwhile.
    left = {each.name for each in tmp_path.glob("respsite-containers-*")} - {"respsite-containers-link"}
    assert left == {mine.parent.name, theirs.parent.name}
    assert tmp_path.parent.is_dir()


def test_a_folder_that_is_about_to_be_locked_is_no_dead_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lock = fcntl.flock

    def look_before(descriptor: int, how: int) -> None:
        """Do what another process may do just then."""
        monkeypatch.setattr(fcntl, "flock", lock)
        remove_those_of_the_dead()
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", look_before)
    assert Folders().make().is_dir()


def test_threads_make_the_first_ones_in_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folders, together = Folders(), threading.Barrier(4)

    def make(_: int) -> Path:
        together.wait()
        return folders.make()

    with ThreadPoolExecutor(4) as threads:
        assert len({folder.parent for folder in threads.map(make, range(4))}) == 1


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "container"
    folder.mkdir()
    yield folder
    disk.remove(folder)
    assert not folder.exists()


@pytest.mark.parametrize(
    "code",
    [
        "for each in range(300): os.mkdir(str(each))",
        "for each in range(300): open(str(each), 'w').close()",
        "for each in range(300): os.symlink('/usr', str(each))",
        "for each in range(1500):\n    os.mkdir('deep')\n    os.chdir('deep')",
        "file = open('x', 'wb')\nos.remove('x')\nfile.write(bytes(1100000))\nfile.flush()",
        pytest.param(
            "import mmap\nfile = open('x', 'w+b')\nfile.write(bytes(1100000))\nfile.flush()\nos.remove('x')\n"
            "held = mmap.mmap(file.fileno(), 4096)\nfile.close()",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root sees what others have mapped"),
        ),
    ],
)
def test_files_on_the_disk_count_however_they_are_kept(folder: Path, code: str) -> None:
    argv = [sys.executable, "-c", f"import os\n{code}\nprint('done', flush=True)\ninput()"]
    with subprocess.Popen(argv, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        assert disk.used(folder, os.getpid(), MIB) > MIB
        process.kill()


def test_few_files_are_few_bytes(folder: Path) -> None:
    (folder / "x").write_bytes(bytes(10_000))
    assert disk.used(folder, os.getpid(), MIB) < 64 * KIB


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.csv", "text/csv"),
        ("data:text/html\r\nX-Own: 1,x", "application/octet-stream"),
        ("data:text/html,x", "application/octet-stream"),
        ("x", "application/octet-stream"),
    ],
)
def test_the_name_of_a_file_makes_no_header(path: str, expected: str) -> None:
    assert content_type_of(path) == expected


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        (CellEnd.DONE, []),
        (CellEnd.DIED, ["its variables are lost, its files are not"]),
        (CellEnd.TOO_MUCH_MEMORY, ["too much memory", "its variables are lost, its files are not"]),
        (CellEnd.TOO_MUCH_DISK, ["its variables and files are lost"]),
    ],
)
def test_the_model_is_told_what_of_a_container_is_lost(ended: CellEnd, told: list[str]) -> None:
    notes = list(notes_of(Execution("", ended, variables_lost=ended is not CellEnd.DONE), SandboxSettings()))
    assert len(notes) == len(told)
    assert all(part in note for note, part in zip(notes, told, strict=True))
