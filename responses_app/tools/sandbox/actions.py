"""What a host of containers does for workers, a line for each action.

An action is a method of `Containers`, under its own name, with plain arguments: what JSON knows, and bytes. What it
returns may also be a dataclass, or a sequence of them. Nothing but these names can be asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from responses_app.tools.sandbox.base import SandboxError
from responses_app.tools.sandbox.commands import CommandsRun
from responses_app.tools.sandbox.records import (
    CellRun,
    ChainFound,
    ContainerFile,
    ContainerNotFound,
    ContainerRecord,
    FilePart,
    HostGone,
    MemoryRefused,
    NetworkRefused,
    TooManyContainers,
)
from responses_app.tools.sandbox.session import SandboxGone
from responses_app.tools.sandbox.skills import MountedSkill

LOOK_SECONDS = 5.0  # to say what a host has: it needs nothing for that
FILE_SECONDS = 60.0  # to start a container, and to write or read a file of it


@dataclass(frozen=True, slots=True)
class Action:
    """How an action is asked for."""

    result: Any  # the type of what it returns
    seconds: float | None = FILE_SECONDS  # in which it answers; None where it has its own bound
    needs: bool = False  # its last argument is a callback, by which it has the worker do something while it works
    reports: bool = False  # its last argument is a function that it tells how far it is
    # It is not done twice for one `call`, and goes on where its worker dies: `Containers` keeps what came of it, and
    # is told by its last argument whether the worker is gone.
    is_kept: bool = False


ACTIONS = {
    "check": Action(str),  # the name of the sandbox; it is tried when it is first asked for
    "make": Action(ContainerRecord, LOOK_SECONDS),
    "record": Action(ContainerRecord, LOOK_SECONDS),
    "records": Action(Sequence[ContainerRecord], LOOK_SECONDS),
    "of_chain": Action(ChainFound | None, LOOK_SECONDS),
    "join_chain": Action(None, LOOK_SECONDS),
    "give_secrets": Action(None, LOOK_SECONDS),
    "delete": Action(None),
    "run": Action(CellRun, None, is_kept=True),
    "run_program": Action(CellRun, None, needs=True),
    "run_commands": Action(CommandsRun, None, reports=True),
    "put_part": Action(None),
    "finish": Action(ContainerFile),
    "drop": Action(None),
    "put_image": Action(ContainerFile),
    "files_of": Action(Sequence[ContainerFile]),
    "file": Action(ContainerFile),
    "part": Action(FilePart),
    "remove_file": Action(None),
    "skills_of": Action(Sequence[MountedSkill], LOOK_SECONDS),
    "add_skill": Action(None),
}

# What an action may raise: it is raised again at the worker, with its text.
ERRORS: dict[str, type[Exception]] = {
    each.__name__: each
    for each in (
        ContainerNotFound,
        SandboxError,
        SandboxGone,
        TooManyContainers,
        MemoryRefused,
        NetworkRefused,
        HostGone,
    )
}
