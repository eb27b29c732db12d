"""Parts of the sandbox that need no container: output, what a warden says, the filter, the interpreter."""

import struct
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_app.tools.sandbox import seccomp
from responses_app.tools.sandbox.base import Limits
from responses_app.tools.sandbox.choosing import choose
from responses_app.tools.sandbox.containers import Container
from responses_app.tools.sandbox.environment import environment
from responses_app.tools.sandbox.execution import MAX_FILES, MAX_IMAGES, StoredFile, files_of, images_of
from responses_app.tools.sandbox.inside.respsite_kernel.frames import Frame
from responses_app.tools.sandbox.interpreter import InterpreterError, find_interpreter
from responses_app.tools.sandbox.output import Output
from responses_app.tools.sandbox.records import ContainerFile


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


def test_the_environment_holds_nothing_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "x")
    assert "SECRET_KEY" not in environment(Limits())


def test_of_what_a_warden_says_no_more_is_read_than_a_true_one_would_say() -> None:
    told = {
        "files": [[f"{number}.txt", number] for number in range(3 * MAX_FILES)],
        "images": [["image/png", 0]] * 1000,
    }
    assert len(files_of(told)) == MAX_FILES
    assert len(images_of(Frame(told))) == MAX_IMAGES
    assert files_of({"files": [["a", 1], ["b", -1], ["../c", 1], ["d"], 5]}) == [StoredFile("a", 1)]


def test_a_container_remembers_the_newest_of_the_files_that_it_is_told_of() -> None:
    container = Container("cntr_1", "default", "auto", created_at=0, idle=1.0, memory="1g", last_active=0.0)
    for number in range(MAX_FILES + 5):
        container.know(ContainerFile(f"cfile_{number}", f"{number}.txt", 1, 0, "assistant"))
    assert next(iter(container.files)) == "5.txt"
    assert len(container.files) == MAX_FILES
