"""The application in this process: as many methods as `tests.kit.server.Server` has, and no network.

    with Server(tmp_path, engine="scripted", script=[…]) as server:
        httpx.get(f"{server.url}/v1/models")

It runs on an event loop of its own, in a thread of its own. Clients that use httpx (SDKs too) reach it by its URL, and
`tests.kit.clients.Socket` by its WebSocket's: see `tests.kit.inprocess_clients`. For whatever is not about bytes on a
connection, signals or processes. Settings, database and the one site belong to a process, so one of these servers is
active at a time; another one that is asked anything becomes active in its place, and the first begins anew when the
next test asks it, with its database and its folder. Servers that share a database are processes: `tests.kit.server`.

`advance` moves the clock of the loop: timers that are due then fire at once.
"""

import asyncio
import contextlib
import functools
import io
import logging
import math
import os
import runpy
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self, TypeVar
from unittest import mock

import httpx
from asgiref.sync import SyncToAsync, sync_to_async
from django.conf import settings as django_settings
from django.core.management import CommandError, call_command
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import load_backend
from django.test import override_settings

from responses_app.admin.sign_on.backend import provider
from responses_app.kit import pool
from responses_app.observing.logs import Discreet, JsonLogLines, Seldom, TextLines, keep_silent
from responses_app.wiring.site import get_site
from respsite.application import make_application
from tests.kit import closed, server
from tests.kit.inprocess_clients import by_port, lead_here
from tests.kit.waiting import looks

Result = TypeVar("Result")
Message = dict[str, Any]
App = Callable[[Message, Any, Any], Coroutine[Any, Any, None]]

WAIT_SECONDS = 60.0  # bound of every wait for the application
LEFT_SECONDS = 60.0  # how long a thread of the application may take to end
ENDING_SECONDS = 5.0  # how long something may still be served that no client waits for
SETTINGS = Path(server.ROOT, "respsite", "settings.py")
# Set up once a process; the rest of Django's settings follows the environment of each server.
FIXED = ("INSTALLED_APPS", "LOGGING", "DATABASES", "RESPSITE_WARNINGS")
_activating = threading.RLock()  # tests ask from several threads
lead_here()


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose clock a test can move forward."""

    ahead = 0.0  # seconds

    def time(self) -> float:
        """Return the seconds of its clock."""
        return time.monotonic() + self.ahead


@dataclass
class Running:
    """A started application: its loop, what it is doing, and what has to be undone at its end."""

    app: App
    loop: Loop
    thread: threading.Thread
    undo: contextlib.ExitStack
    failures: list[str] = field(default_factory=list)  # that no client was told
    serving: "set[asyncio.Task[None]]" = field(default_factory=set)  # requests and connections

    def note(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        """Note what failed where nobody waits for it."""
        self.failures.append(f"{context['message']}: {context.get('exception')!r}")
        loop.default_exception_handler(dict(context))

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run this on the loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(WAIT_SECONDS)

    def is_idle(self) -> bool:
        """Whether nothing is served any more, soon: an answer's task ends behind its client's last word."""
        return any(not self.serving for _ in looks(ENDING_SECONDS))

    def serve(self, scope: Message, receive: Any, send: Any) -> "Future[None]":
        """Serve a request or a connection; the result is its end, or what the application raised."""
        ended: Future[None] = Future()

        def begin() -> None:
            task = self.loop.create_task(self.app(scope, receive, send))
            self.serving.add(task)
            task.add_done_callback(end)

        def end(task: "asyncio.Task[None]") -> None:
            self.serving.discard(task)
            if task.cancelled():
                ended.cancel()
            elif (error := task.exception()) is not None:
                ended.set_exception(error)
            else:
                ended.set_result(None)

        self.loop.call_soon_threadsafe(begin)
        return ended


def _manage_here(*arguments: str, **chosen: str) -> str:
    """Run a command of manage.py with these settings in this process, while no server is active."""
    Server.rest()
    with _settings(server.server_environ(**chosen)) as configured, _database(configured["DATABASES"]):
        return _on_a_thread(lambda: _commanded(*arguments))


class Server(server.Server):
    """The application in this process. Settings are keyword arguments in their environment's names, in lower case."""

    migrating = staticmethod(_manage_here)
    active: "Server | None" = None  # of this process

    def __init__(self, folder: Path, *, kind: str = "in process", **settings: Any) -> None:
        super().__init__(folder, kind=kind, **settings)
        self.running: Running | None = None
        self._is_stopped = True
        self._left_in = ""  # the test in which another one became active in its place

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not stopped."""
        return not self._is_stopped

    def start(self, *, wait: bool = True) -> Self:
        """Start, and wait until it is ready."""
        self._is_stopped, self._left_in = False, ""
        by_port[self.port] = self
        self.activate(wait=wait)
        return self

    def activate(self, *, wait: bool = True) -> Running:
        """Let this one be the active server of this process, and return what runs."""
        with _activating:
            return self.running or self._activate(wait=wait)

    def _activate(self, *, wait: bool) -> Running:
        assert not self._is_stopped, "this server was stopped"
        assert not self._left_in or self._left_in != _test(), "servers that share a database are processes"
        if Server.active is not None:
            Server.active._left_in = _test() if Server.active._shares_with(self) else ""
            Server.active._suspend()
        self.running = running = _begin(self.environ, self.log)
        Server.active = self
        try:
            if wait:
                self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return running

    def stop(self, with_signal: int = 0) -> int:
        """Stop, and check that nothing of it is left."""
        self._is_stopped = True
        by_port.pop(self.port, None)
        self._suspend(is_over=True)
        return 0

    @staticmethod
    def rest() -> None:
        """Let none be active; one that is asked again begins anew."""
        if Server.active is not None:
            Server.active._suspend()

    def kill(self) -> None:
        """Not possible: a process ends so."""
        raise NotImplementedError("what is about a process needs one: tests.kit.server")

    def advance(self, seconds: float) -> None:
        """Move the clock of its event loop forward: what is due until then happens, in its order."""
        running = self.activate()

        async def move() -> None:
            running.loop.ahead += seconds
            await asyncio.sleep(0)

        running.run(move())

    def operate(self, *arguments: str) -> str:
        """Run a command of manage.py on its database, and return what it prints."""
        return self.with_database(lambda: _commanded(*arguments))

    manage = operate

    def with_database(self, work: Callable[[], Result]) -> Result:
        """Return what `work` returns, called on a thread whose default database is this server's."""
        self.activate()
        return _on_a_thread(work)

    def _shares_with(self, other: "Server") -> bool:
        """Whether both have one database: then they could hear of each other, were they there at the same time."""
        return any(
            name in self.environ and self.environ[name] == other.environ.get(name)
            for name in ("DATA_DIR", "DATABASE_URL")
        )

    def _wait_until_ready(self) -> None:
        for _ in looks(WAIT_SECONDS):
            if httpx.get(f"{self.url}/ready", verify=False).status_code == 200:
                return
        raise AssertionError(f"it did not become ready:\n{self.output}")

    def _suspend(self, *, is_over: bool = False) -> None:
        running, self.running = self.running, None
        if running is None:
            return
        Server.active = None
        try:
            assert is_over or running.is_idle(), "two servers of a process cannot answer at the same time"
        finally:
            running.undo.close()
        assert not running.failures, running.failures


class ClosedServer(Server, closed.ClosedServer):
    """A server that asks everybody for a key."""

    def some_keys(self) -> tuple[str, str, str]:
        """Make a key that opens, one that is revoked, and one that may have no response at all."""
        *_, good, revoked, limited = self.manage("shell", "--no-imports", "-c", closed.SOME_KEYS).split()
        return good, revoked, limited


def _test() -> str:
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]


def _commanded(*arguments: str) -> str:
    """Run a command of manage.py, and return what it prints. One that fails is an `AssertionError` with its words."""
    said, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            call_command(*arguments, stdout=said, stderr=errors)
        except CommandError as error:
            raise AssertionError(f"{errors.getvalue()}{error}") from error
    return said.getvalue()


def _on_a_thread(work: Callable[[], Result]) -> Result:
    """Return what `work` returns, called on a thread of its own, whose database connections end with it."""

    def run() -> Result:
        try:
            return work()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1, thread_name_prefix="operator") as threads:
        return threads.submit(run).result()


def _begin(environ: Mapping[str, str], log: Path) -> Running:
    """Start the application with this environment."""
    with contextlib.ExitStack() as undo, mock.patch.dict(os.environ, environ, clear=True):
        undo.enter_context(_no_thread_left())
        configured = undo.enter_context(_settings(environ))
        undo.enter_context(_database(configured["DATABASES"]))
        undo.enter_context(_logged_in(log, configured))
        undo.enter_context(mock.patch("signal.raise_signal", side_effect=AssertionError("a process would end here")))
        site = undo.enter_context(_site_of_its_own())
        loop = Loop()
        thread = threading.Thread(target=loop.run_forever, name="application", daemon=True)
        thread.start()
        undo.callback(_end_loop, loop, thread)
        running = Running(make_application(site), loop, thread, contextlib.ExitStack())
        loop.call_soon_threadsafe(loop.set_exception_handler, running.note)
        life = running.run(_start(running))
        undo.callback(running.run, _end_life(running, *life))
        running.undo = undo.pop_all()
    return running


Life = tuple["asyncio.Queue[Message]", "asyncio.Queue[Message]", "asyncio.Task[None]"]


async def _start(running: Running) -> Life:
    """Begin the application's life as a server does."""
    inbox: asyncio.Queue[Message] = asyncio.Queue()
    heard: asyncio.Queue[Message] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}}
    task = asyncio.create_task(running.app(scope, inbox.get, heard.put))
    inbox.put_nowait({"type": "lifespan.startup"})
    getting = asyncio.ensure_future(heard.get())
    await asyncio.wait((task, getting), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        getting.cancel()
        task.result()
    assert getting.result() == {"type": "lifespan.startup.complete"}
    return inbox, heard, task


async def _end_life(running: Running, inbox: Any, heard: Any, task: Any) -> None:
    """End it, and check that nothing goes on: no request, no task."""
    inbox.put_nowait({"type": "lifespan.shutdown"})
    await task
    assert heard.get_nowait() == {"type": "lifespan.shutdown.complete"}
    if running.serving:  # a server would cut their connections now
        for serving in running.serving:
            serving.cancel()
        await asyncio.wait(running.serving)
    await sync_to_async(_forget_connection)()
    await running.loop.shutdown_default_executor()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, left


def _forget_connection() -> None:
    """Close the database connection of a thread that outlives the server, which then has none."""
    if hasattr(connections._connections, "default"):
        connections["default"].close()
        del connections["default"]


def _end_loop(loop: Loop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive(), "the application's loop goes on"
    loop.close()


@contextlib.contextmanager
def _no_thread_left() -> Iterator[None]:
    """Check that all threads of an application end with it: those that the tests' own thread does not start."""
    SyncToAsync.single_thread_executor.submit(int).result()  # this one is the process's
    begin, begun = threading.Thread.start, weakref.WeakSet[threading.Thread]()

    def start(thread: threading.Thread) -> None:
        if threading.current_thread() is not threading.main_thread():
            begun.add(thread)
        begin(thread)

    with mock.patch.object(threading.Thread, "start", start):
        yield
    for _ in looks(LEFT_SECONDS):
        left = [thread for thread in begun if thread.is_alive()]
        if not left:
            return
    raise AssertionError(f"threads are left: {left}")


@contextlib.contextmanager
def _settings(environ: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Let Django's settings be those that a process with this environment has."""
    with mock.patch.dict(os.environ, environ, clear=True):
        configured = {name: value for name, value in runpy.run_path(str(SETTINGS)).items() if name.isupper()}
    other = {name: value for name, value in configured.items() if getattr(django_settings, name, None) != value}
    with override_settings(**{name: value for name, value in other.items() if name not in FIXED}):
        yield configured


@contextlib.contextmanager
def _database(databases: dict[str, Any]) -> Iterator[None]:
    """Let threads that connect from now on do so to these databases; this thread's connection stays what it is."""
    _let_other_threads_connect()
    connections["default"]  # made by the settings that were
    before = connections.settings
    connections.settings = connections.configure_settings(databases)
    try:
        yield
    finally:
        connections.settings = before
        pool._process_ends_at = math.inf  # a process stops once; this one goes on


@functools.cache
def _let_other_threads_connect() -> None:
    """Let pytest-django keep only the tests' own thread from the database: the others are the application's."""
    base = BaseDatabaseWrapper

    def ensure_connection(wrapper: BaseDatabaseWrapper) -> None:
        if threading.current_thread() is threading.main_thread():
            base.ensure_connection(wrapper)
        elif wrapper.connection is None:
            with wrapper.wrap_database_errors:
                wrapper.connect()

    for backend in ("django.db.backends.sqlite3", *(["django.db.backends.postgresql"] if find_spec("psycopg") else [])):
        load_backend(backend).DatabaseWrapper.ensure_connection = ensure_connection


@contextlib.contextmanager
def _logged_in(log: Path, configured: Mapping[str, Any]) -> Iterator[None]:
    """Write the log to a file, as the settings say."""
    handler = logging.FileHandler(log)
    handler.setFormatter(JsonLogLines() if configured["RESPSITE"].log_format == "json" else TextLines())
    handler.addFilter(Seldom())
    handler.addFilter(Discreet())
    own, root = logging.getLogger("respsite"), logging.getLogger()
    level = own.level
    own.setLevel(configured["LOGGING"]["loggers"]["respsite"]["level"])
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
        own.setLevel(level)
        keep_silent(lambda _: False)


@contextlib.contextmanager
def _site_of_its_own() -> Iterator[Any]:
    """Build the site by the settings that are, and forget it behind."""
    caches = (get_site, provider)
    if get_site.cache_info().currsize:  # tests of pages without a server have read with its store
        _on_a_thread(lambda: asyncio.run(get_site().store.aclose()))
    for cache in caches:
        cache.cache_clear()
    # What is not garbage stays for good in a server's process; in this one, tests come and go.
    with mock.patch("responses_app.wiring.site.collect_less_garbage", return_value=None):
        site = _on_a_thread(get_site)
        _on_a_thread(site.make)
    site.engines.check()
    try:
        yield site
    finally:
        for cache in caches:
            cache.cache_clear()
