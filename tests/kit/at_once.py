"""Several processes run the tests: `--at-once 4`. The tests are collected once; then this process forks.

Each process takes the tests of one file after another, so those who share a server share one. Fixtures of the session
are one per process. What a test or its file has left open is found at its end, and not blamed on whichever test runs
when the garbage collector comes.
"""

import atexit
import gc
import itertools
import logging
import os
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest
from _pytest.unraisableexception import collect_unraisable

from tests.kit.server import prepare

Files = Sequence[Sequence[pytest.Item]]

PREPARING = pytest.StashKey[threading.Thread]()
PLACE = struct.Struct("I")  # of a file among all: the processes take them from one pipe


@dataclass
class Worker:
    """One of the processes, as the first one sees it."""

    pid: int
    says: Connection
    runs: str = "no test yet"


class Reporter:
    """Tells the first process what happens in another."""

    def __init__(self, config: pytest.Config, says: "Connection[Any, Any]") -> None:
        self._config = config
        self._says = says

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Say what begins: it may end this process."""
        self._says.send(("begins", str(nodeid)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Say how a phase of a test ended."""
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._says.send(("ended", data))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--at-once", type=int, default=1, metavar="N", help="run tests in N processes, file by file")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let what servers are forked from begin, while the tests are collected, which makes no garbage to speak of."""
    gc.disable()
    if session.config.option.at_once > 1 and not session.config.option.collectonly:
        session.config.stash[PREPARING] = prepare()


def pytest_collection_finish() -> None:
    """Leave alone what was collected: it stays."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)  # behind the teardown itself
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Find what a test has left open, or, if it is older than the collector's last look, what its file has."""
    gc.collect(1 if nextitem is not None and nextitem.path == item.path else 2)
    collect_unraisable(item.config)


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in several processes, if that is asked for."""
    option = session.config.option
    if option.at_once < 2 or option.collectonly or session.testsfailed or not session.items:
        return None
    session.config.stash[PREPARING].join()
    assert threading.active_count() == 1, "threads do not live on in a fork"
    files = [list(tests) for _, tests in itertools.groupby(session.items, key=lambda item: item.path)]
    tasks, places = os.pipe()
    os.write(places, b"".join(PLACE.pack(place) for place in range(len(files))))
    os.close(places)
    workers = [_fork(session, files, tasks, f"w{number}") for number in range(min(option.at_once, len(files)))]
    try:
        _listen(session, workers)
    except BaseException:
        for worker in workers:
            os.kill(worker.pid, signal.SIGINT)
        raise
    finally:
        os.close(tasks)
        for worker in workers:
            worker.says.close()
            os.waitpid(worker.pid, 0)
    return True


def _listen(session: pytest.Session, workers: Sequence[Worker]) -> None:
    """Hear what the processes say until all have ended."""
    hook = session.config.hook
    by_pipe = {worker.says: worker for worker in workers}
    while by_pipe:
        for says in wait(list(by_pipe)):
            assert isinstance(says, Connection)
            worker = by_pipe[says]
            try:
                kind, what = says.recv()
            except EOFError:
                raise session.Interrupted(f"a process ended in {worker.runs}") from None
            if kind == "begins":
                worker.runs = what
            elif kind == "ended":
                hook.pytest_runtest_logreport(
                    report=hook.pytest_report_from_serializable(config=session.config, data=what)
                )
            else:
                del by_pipe[says]
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)


def _fork(session: pytest.Session, files: Files, tasks: int, name: str) -> Worker:
    """Fork a process that runs tests."""
    sys.stdout.flush()
    sys.stderr.flush()
    ours, theirs = Pipe(duplex=False)
    pid = os.fork()
    if pid:
        theirs.close()
        return Worker(pid, ours)
    status = 1
    try:
        ours.close()
        _become(session.config, theirs, name)
        _run(session, files, tasks, theirs)
        status = 0
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        session._setupstate.teardown_exact(None)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        atexit._run_exitfuncs()
        session.config.pluginmanager.getplugin("capturemanager").stop_global_capturing()
        sys.stderr.flush()
        os._exit(status)


def _become(config: pytest.Config, says: "Connection[Any, Any]", name: str) -> None:
    """Give a process what is its own: output that is captured, a folder, the names of its databases, exit functions."""
    atexit._clear()
    manager = config.pluginmanager
    capture = manager.getplugin("capturemanager")
    capture.stop_global_capturing()  # what the first process captures into
    capture.start_global_capturing()
    _log_here()
    manager.unregister(manager.getplugin("terminalreporter"))
    manager.register(Reporter(config, says))
    folders = config._tmp_path_factory  # type: ignore[attr-defined]
    folders._basetemp = folders.getbasetemp() / name
    folders._basetemp.mkdir()
    config.workerinput = {"workerid": name}  # type: ignore[attr-defined] # what pytest-django looks for


def _log_here() -> None:
    """Have handlers of logs whose stream was the first process's write to standard error as it is captured now."""
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        for handler in getattr(logger, "handlers", ()):
            stream = getattr(handler, "stream", None)  # none of a file that is opened with its first line
            if stream is not None and stream.closed:
                handler.stream = sys.stderr  # `setStream` would flush the closed one


def _run(session: pytest.Session, files: Files, tasks: int, says: "Connection[Any, Any]") -> None:
    """Run the tests of one file after another, and end the fixtures of the session."""
    tests = _next(files, tasks)
    while tests:
        last = tests[-1]
        for test, following in itertools.pairwise(tests):
            test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
        tests = _next(files, tasks)  # what both files use stays: servers of a folder
        last.config.hook.pytest_runtest_protocol(item=last, nextitem=tests[0] if tests else None)
    says.send(("done", None))


def _next(files: Files, tasks: int) -> Sequence[pytest.Item]:
    """Take the next file's tests; nothing when all are taken."""
    place = os.read(tasks, PLACE.size)
    return files[PLACE.unpack(place)[0]] if place else ()
