"""A process that has imported what every server imports, and forks one whenever `tests.kit.forking` orders it.

    python -m tests.kit.forker CONTROL

CONTROL is the descriptor of a socket. An order is one message: JSON with `command` (the words behind `python`: `-m`, a
module and its arguments, or a script and its arguments), `environ` and `cwd`; and three descriptors, for the output,
for what it says of errors, and a socket. On that socket it answers with a line with the process's number, and, when the
process has ended, a line with its exit status as `subprocess` counts it. It ends when nobody can order any more, and
kills what still runs.

What is imported here reads no settings, makes no event loop and starts no thread: all that is a server's own, and it
comes with the environment of the order. A server that is started so costs 0.4 s of CPU instead of 1.6 s.
"""

import array
import contextlib
import faulthandler
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
from dataclasses import dataclass

from tests.kit.watchdog import WRITE_STACKS

# The reactor of Twisted must not be among them, nor `daphne.server`: they make an event loop.
MODULES = (
    *("twisted.internet.asyncioreactor", "twisted.internet.endpoints", "twisted.logger", "twisted.web.http"),
    *("autobahn.twisted.websocket", "uvicorn.main", "uvicorn.protocols.http.auto", "websockets.asyncio.server"),
    *("psycopg", "redis.asyncio", "channels.routing", "channels.generic.websocket", "channels_redis.core"),
    *("django.contrib.admin.options", "django.core.management.commands.check", "django.db.migrations.executor"),
    *("django.core.handlers.asgi", "django.template.defaulttags", "django.views.generic"),
    *("django.db.backends.sqlite3.base", "django.contrib.auth.hashers", "django.contrib.staticfiles.handlers"),
    *("engine.backends.demo.engine", "responses_app.wiring.site", "responses_app.web.bodies"),
    "responses_app.resources.vector_stores.tool",
    *("engine.contents.bounded_validators", "lark.load_grammar"),  # loaded with a first schema or grammar
    *(
        "responses_app.web.middleware",
        "responses_app.web.sockets.consumer",
        "responses_app.extensions.console.watch.transcript",
    ),
    # All of `responses_app.api.endpoints` that can be had without settings.
    *(f"responses_app.api.{name}" for name in ("responses", "models")),
    *(f"responses_app.api.{name}" for name in ("messages", "stateless", "openapi")),
    "responses_app.extensions.containers.endpoints",
    *(f"responses_app.extensions.training.{name}" for name in ("engine", "rollouts")),
    *(f"responses_app.resources.{name}.endpoints" for name in ("audit", "files", "projects", "skills", "usage")),
)
MAX_ORDER = 1024 * 1024  # bytes


@dataclass(frozen=True)
class Order:
    """What a process is to become."""

    command: list[str]
    environ: dict[str, str]
    cwd: str
    output: int
    errors: int
    reports: socket.socket


def prepare() -> None:
    """Import what servers need, and check that nothing has begun by it that a fork would share."""
    for name in MODULES:
        importlib.import_module(name)
    from django.conf import settings

    from engine.formats.harmony.encoding import load_encoding

    load_encoding()
    assert not settings.configured, "settings are a server's own"
    assert "twisted.internet.reactor" not in sys.modules, "an event loop is a server's own"
    assert threading.active_count() == 1, "threads do not live on in a fork"
    gc.collect()
    gc.freeze()  # what stands here is never freed


def fork_as_ordered(control: socket.socket) -> Order | None:
    """Fork for every order. Return in the new process with its order, and here with nothing, at the end."""
    waiting = select.poll()
    waiting.register(control, select.POLLIN)
    children: dict[int, tuple[int, socket.socket]] = {}  # by the descriptors that say when they end
    while True:
        for descriptor, _ in waiting.poll():
            if descriptor in children:
                waiting.unregister(descriptor)
                _report_end(descriptor, *children.pop(descriptor))
                continue
            order = _next_order(control)
            if order is None:
                _end_all([pid for pid, _ in children.values()])
                return None
            pid = os.fork()
            if pid == 0:
                control.close()
                for other, (_, reports) in children.items():
                    os.close(other)
                    reports.close()
                return order
            os.close(order.output)
            os.close(order.errors)
            order.reports.sendall(f"{pid}\n".encode())
            end = os.pidfd_open(pid)
            children[end] = (pid, order.reports)
            waiting.register(end, select.POLLIN)


def _end_all(pids: list[int]) -> None:
    """Kill what still runs: the tests that would have ended it are gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it ended just now, or has no session of its own yet
            os.killpg(pid, signal.SIGKILL)


def _report_end(descriptor: int, pid: int, reports: socket.socket) -> None:
    _, status = os.waitpid(pid, 0)
    os.close(descriptor)
    with reports, contextlib.suppress(BrokenPipeError):  # nobody wants to know
        reports.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _next_order(control: socket.socket) -> Order | None:
    message, ancillary, _, _ = control.recvmsg(MAX_ORDER, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    if not message:
        return None
    descriptors = array.array("i")
    for _, _, data in ancillary:
        descriptors.frombytes(data)
    output, errors, reports = descriptors
    return Order(**json.loads(message), output=output, errors=errors, reports=socket.socket(fileno=reports))


def become(order: Order) -> None:
    """Run what was ordered in this process, as its main program."""
    order.reports.close()
    os.setsid()
    for descriptor, standard in ((order.output, 1), (order.errors, 2)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    faulthandler.register(WRITE_STACKS, file=2)
    os.chdir(order.cwd)
    os.environ.clear()
    os.environ.update(order.environ)
    first, *rest = order.command
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = order.command
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    prepare()
    order = fork_as_ordered(socket.socket(fileno=int(sys.argv[1])))
    if order is not None:
        become(order)
