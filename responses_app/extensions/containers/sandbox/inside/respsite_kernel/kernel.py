"""The kernel: it runs cells of Python one after another, and keeps what they leave, as a notebook does.

The value of a last expression is shown; figures and images are sent to the host behind the cell. `!command` and
`%magic` are taken where the code would not be Python with them: models have learned them from notebooks.
"""

import ast
import builtins
import contextlib
import io
import linecache
import os
import re
import signal
import socket
import sys
import traceback
import types
from collections.abc import Iterator
from typing import Any, Optional

from respsite_kernel.display import DISPLAY
from respsite_kernel.frames import packed, read_frame

_CO_COROUTINE = 0x80  # `inspect.CO_COROUTINE`: importing that would take longer than all of this
_AWAITS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
# `!pip list`, `%matplotlib inline`, `%%time`: a line that begins with the sign.
_MAGIC = re.compile(r"^(\s*)(!|%%?)(.*)$", re.MULTILINE)
_MAX_MESSAGE = 1000  # characters of an error that the host is told; all of it is in the output


class Kernel:
    """Runs cells in one namespace."""

    def __init__(self, folder: str) -> None:
        self._display = DISPLAY
        self._cells = 0  # so far; they are named by their number
        self._loop: Any = None  # of asyncio, made for the first cell that awaits something
        self._out = (_stream(1), _stream(2))  # standard output and error, which the cell may replace
        # What cells pickle or look up by module has to find their names: so the namespace is a module's.
        module = types.ModuleType("__main__")
        module.__dict__.update(__builtins__=builtins, display=self._display, __respsite_shell=_shell)
        sys.modules["__main__"] = module
        # Modules that were written into the work folder can be imported.
        sys.path.insert(0, folder)
        self._names = module.__dict__  # what cells have defined

    def run(self, code: str) -> tuple[Optional[dict[str, str]], list[tuple[str, bytes]]]:  # noqa: UP045
        """Run a cell; return its error if it had one, and the images that it showed, with their media types."""
        # A cell may have put something else in their place.
        sys.stdout, sys.stderr = self._out
        self._cells += 1
        name = f"<cell {self._cells}>"
        try:
            self._run(code, name)
            error = None
        except BaseException as problem:  # noqa: BLE001  # whatever the code raises, SystemExit too
            error = _told(problem, name)
        with _errors_are_printed(name):
            self._display.show_figures()
        for stream in self._out:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        return error, self._display.take()

    def give_calls(self, channel: socket.socket) -> Any:
        """Let the next cell call the host's tools; return what ends that."""
        # Imported here: most containers run no program, and all would wait for it.
        from respsite_kernel.calls import Calls, ToolError

        calls = Calls(channel)
        self._names.update(
            call_tool=calls.call_tool,
            call_tools=calls.call_tools,
            call_tool_async=calls.call_tool_async,
            ToolError=ToolError,
        )
        return calls

    def _run(self, code: str, name: str) -> None:
        tree, source = _parsed(code, name)
        # For tracebacks, which read the lines of a cell there as those of a file.
        linecache.cache[name] = (len(source), None, list(io.StringIO(source, None)), name)
        last = tree.body[-1] if tree.body else None
        # A semicolon at the end shows nothing, as in notebooks.
        shown = isinstance(last, ast.Expr) and not source.rstrip().endswith(";")
        statements = tree.body[:-1] if shown else tree.body
        self._evaluate(compile(ast.Module(statements, tree.type_ignores), name, "exec", _AWAITS))
        if isinstance(last, ast.Expr) and shown:
            value = self._evaluate(compile(ast.Expression(last.value), name, "eval", _AWAITS))
            if value is not None:
                self._names["_"] = value
                self._display(value)

    def _evaluate(self, code: types.CodeType) -> Any:
        value = eval(code, self._names)  # the point of it all
        if not (code.co_flags & _CO_COROUTINE):
            return value
        if self._loop is None:
            import asyncio  # a third of the start of a container, if it were imported by all

            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop.run_until_complete(value)


def serve(channel: socket.socket, folder: str) -> None:
    """Run the cells that come, one after another, until nobody sends any more."""
    # Between cells an interruption is nobody's.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kernel, own = Kernel(folder), os.getpid()
    channel.sendall(packed({"ready": True}))
    while (frame := read_frame(channel)) is not None:
        # From here on Ctrl-C is `KeyboardInterrupt` in the cell.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        calls = kernel.give_calls(channel) if frame.header.get("calls") else None
        try:
            error, images = kernel.run(frame.payload.decode())
        except KeyboardInterrupt:  # it came as the cell ended
            error, images = None, []
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if calls is not None:
                calls.end()
        if os.getpid() != own:  # a process that the cell has forked, and that ran on behind it
            os._exit(0)
        header = {"error": error, "images": [[kind, len(content)] for kind, content in images]}
        channel.sendall(packed(header, b"".join(content for _, content in images)))


def _parsed(code: str, name: str) -> tuple[ast.Module, str]:
    """Return a cell's statements and their source."""
    try:
        return ast.parse(code, name), code
    except SyntaxError as problem:
        without_magic = _MAGIC.sub(_as_python, code)
        # Nothing was replaced: the error is the cell's own.
        if without_magic == code:
            raise
        with contextlib.suppress(SyntaxError):
            return ast.parse(without_magic, name), without_magic
        # Of the code as it was written, not as it was changed.
        raise problem from None


def _as_python(line: re.Match[str]) -> str:
    indent, mark, rest = line.groups()
    if mark == "!":
        # In place of the line, so that the lines of a traceback stay right.
        return f"{indent}__respsite_shell({rest.strip()!r})"
    return f"{indent}pass  # {mark}{rest}"


def _shell(command: str) -> None:
    """Run a command of the shell; its output goes where that of the cell goes."""
    import subprocess

    sys.stdout.flush()
    subprocess.run(command, shell=True, check=False, stdin=subprocess.DEVNULL)  # `!command` in a cell


def _told(problem: BaseException, name: str) -> dict[str, str]:
    """Print a traceback that begins with the cell, and return what the error is."""
    if isinstance(problem, SystemExit):
        return {}
    with _errors_are_printed(name):
        frames = problem.__traceback__
        # The frames above the cell are ours, and say nothing to the model.
        while frames is not None and frames.tb_frame.f_code.co_filename != name:
            frames = frames.tb_next
        lines = traceback.format_exception(type(problem), problem, frames)
        sys.stdout.flush()
        sys.stdout.write("".join(lines))
    return {"name": type(problem).__name__, "message": _text(problem)[:_MAX_MESSAGE]}


@contextlib.contextmanager
def _errors_are_printed(name: str) -> Iterator[None]:
    """Objects of the cell are asked what they look like here; what they raise is theirs."""
    try:
        yield
    except BaseException as problem:  # noqa: BLE001
        with contextlib.suppress(BaseException):
            sys.stdout.write(f"[{name}: {type(problem).__name__} while it was shown]\n")


def _text(problem: BaseException) -> str:
    try:
        return str(problem)
    except BaseException:  # noqa: BLE001  # an exception of the cell's own, which says what it likes
        return ""


def _stream(descriptor: int) -> io.TextIOWrapper:
    # `closefd`: the descriptor stays open, also where the cell closes the stream.
    raw = os.fdopen(descriptor, "wb", buffering=8192, closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
