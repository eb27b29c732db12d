"""A project that keeps nothing: a marker in all that its clients say is nowhere behind that, and no worker else has it.

The same is said in a project beside it that keeps things, where another marker has to be found: so the search is one.
The faults that only these tests can find: a text that stays in the memory of a worker that never served it, in a log,
in a temporary file, in the pages and the WAL of a database, in Redis or in a trace, once a worker was killed.
"""

import asyncio
import os
import resource
import shutil
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from responses_app.protocol.requests.resources import RUNNING
from tests.kit.closed import ClosedServer
from tests.kit.collector import Collector
from tests.kit.marker import Marker, Places, found_in, in_files, in_memory, in_postgres, in_redis, in_sqlite
from tests.kit.postgres_server import PostgresServer, private_postgres_server  # noqa: F401 - a fixture
from tests.kit.redis_server import RedisServer
from tests.kit.sandboxes import needs_bubblewrap
from tests.kit.stored import stored_statuses
from tests.kit.waiting import eventually
from tests.system.retention.talk import Talk, as_text, cut_off, everything, script_of

pytestmark = [needs_bubblewrap]

SECRET_KEY = "of three workers on loopback, the same for all of them; it guards nothing"
NEVER, KEPT = PROJECTS = ("never", "kept")
# What has to be kept, and what is answered where nothing is.
REFUSED = (
    "background, in conversation, conversation, once, chat once, batch, message batch, vector store, "
    "container, rollout, in rollout, setup, upload, webhook, file, large file, skill"
).split(", ")
ANSWERED = (
    "response, call, output, sealed, continued, python, file in it, compacted, counted, streamed, chat, "
    "second chat, messages, completion, on a socket"
).split(", ")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        yield server
        server.shutdown()


class Markers:
    """The markers of two projects: `given` in all that their clients say, `made` in what the model's code makes."""

    def __init__(self) -> None:
        self.given = {project: Marker() for project in PROJECTS}
        self.made = {project: Marker() for project in PROJECTS}

    def of(self, *projects: str) -> dict[str, Marker]:
        """Return the markers of projects, by the names that `found` tells."""
        given = {f"{project}: given": self.given[project] for project in projects}
        return given | {f"{project}: made": self.made[project] for project in projects}


class Place:
    """A server in a folder, whose temporary files lie there, too."""

    def __init__(self, folder: Path, collector: Collector, markers: Markers, **settings: object) -> None:
        # Not below pytest's own directory, which only root may enter: containers run as another user.
        self.temporary = Path(tempfile.mkdtemp(prefix="respsite-marker-"))
        self.temporary.chmod(0o777)
        self.folder = folder
        self.server = ClosedServer(
            folder,
            application="tests.system.retention.faulty:application",
            script=script_of(markers.made),
            auth="on",
            model_name="m",
            traces="on",
            traces_content="*",
            mcp_allowed_hosts="127.0.0.1",
            database_patience_seconds=0,
            **settings,
        )
        self.server.environ |= {
            "TMPDIR": str(self.temporary),
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }

    def left(self) -> Places:
        """Yield what lies on its disk, but for what the test itself has put there."""
        yield from in_files("disk", self.folder, self.temporary, without="script.json")

    def remove(self) -> None:
        shutil.rmtree(self.temporary)


def found(places: Places, markers: Mapping[str, Marker]) -> dict[str, set[str]]:
    """Return where the markers are, each with its forms."""
    there: dict[str, set[str]] = defaultdict(set)
    for place, data in places:
        in_a_memory = place.startswith("memory")
        for form in found_in(data, markers, opens=not in_a_memory):
            # The script has what the model calls, in which the marker stands the other way round.
            if not (in_a_memory and form.endswith("made, reversed")):
                there[place].add(form)
    return dict(there)


def check_answers(talk: Talk, *, keeps: bool) -> None:
    """See that all of it was said, and answered as it is to be."""
    for name in ANSWERED:
        assert talk.answers[name] == 200, (name, talk.answers[name], as_text(talk.bodies.get(name)))
    assert talk.bodies["response"]["store"] is keeps
    assert talk.bodies["on a socket"]["store"] is keeps
    outputs = [each for each in talk.bodies["python"]["output"] if each["type"] == "code_interpreter_call"]
    assert outputs, as_text(talk.bodies["python"])
    assert outputs[0]["status"] == "completed", as_text(outputs)
    assert talk.answers["broken"] == 500
    assert talk.bodies["failed"]["status"] == "failed"
    refused = {name for name in REFUSED if talk.answers[name] == 400 and _code(talk, name) == "retention_never"}
    assert refused == (set() if keeps else {name for name in REFUSED if name in talk.bodies})
    if not keeps:
        assert {talk.answers[name] for name in REFUSED} == {400}


def _code(talk: Talk, name: str) -> object:
    body = talk.bodies.get(name) or {}
    error = body.get("error") or {}
    # Anthropic's errors have no code.
    return error.get("code", "retention_never" if "keeps nothing" in str(error.get("message")) else None)


def without_dumps(pid: int) -> bool:
    """Whether a process leaves no core dump."""
    return max(resource.prlimit(pid, resource.RLIMIT_CORE)) <= 1


def talks_with(server: ClosedServer, operator: ClosedServer, markers: Markers) -> list[Talk]:
    """Make the two projects, and say everything in both of them."""
    keys = {project: operator.new_key("--project", project) for project in PROJECTS}
    operator.operate("set_retention", "--project", NEVER, "never", "--yes")
    talks = [Talk(server, keys[project], project, markers.given[project]) for project in PROJECTS]
    asyncio.run(everything(talks))
    for talk in talks:
        check_answers(talk, keeps=talk.project == KEPT)
    return talks


def test_three_workers_of_one_cluster(
    tmp_path: Path, collector: Collector, own_postgres_server: PostgresServer, own_redis_server: RedisServer
) -> None:
    markers = Markers()
    both = markers.of(*PROJECTS)
    shared = {
        "database_url": own_postgres_server.url_of(own_postgres_server.create_database()),
        "redis_url": own_redis_server.url,
        "secret_key": SECRET_KEY,
        "worker_lease_seconds": 2,
    }
    levels = (("debug", "line"), ("debug", "json"), ("info", "line"))
    places = [
        Place(tmp_path / f"{number}", collector, markers, log_level=level, log_format=form, **shared)
        for number, (level, form) in enumerate(levels)
    ]
    first, *others = (place.server for place in places)
    first.manage("migrate")
    began = time.time()  # what was written before it knows no marker
    for server in (first, *others):
        server.start()
    try:
        talks = talks_with(first, others[0], markers)
        pids = [server.process.pid for server in (first, *others) if server.process is not None]
        assert all(map(without_dumps, pids))
        # It is where it was said: so the search of memories is one.
        said = markers.given[NEVER].forms["plain"]
        assert any(said in data for _, data in in_memory(pids[0], forked=True))
        asyncio.run(cut_off(first, talks))
        # Until others have taken over what it left, where it left anything.
        asyncio.run(eventually(lambda: not set(stored_statuses(first).values()) & set(RUNNING)))
        there = dict[str, set[str]]()
        for pid in pids[1:]:
            there |= found(in_memory(pid, forked=True), markers.of(NEVER))
        there |= found(in_postgres(str(shared["database_url"])), both)
        there |= found(in_redis(str(shared["redis_url"])), both)
        for place in places:
            there |= found(place.left(), both)
        there |= found((("traces", body) for body in list(collector.bodies)), both)
        own_redis_server.save()
        there |= found(in_files("Redis's disk", own_redis_server.directory), both)
        own_postgres_server.stop()
        there |= found(in_files("PostgreSQL's disk", own_postgres_server.folder, since=began), both)
    finally:
        for server in others:
            server.stop()
        for place in places:
            place.remove()
    check_found(there)


@pytest.mark.representative
def test_one_server_with_sqlite(tmp_path: Path, collector: Collector) -> None:
    markers = Markers()
    place = Place(tmp_path / "server", collector, markers, log_format="json", log_level="debug")
    with place.server as server:
        talks = talks_with(server, server, markers)
        asyncio.run(cut_off(server, talks))  # so the WAL stays as it was
    database = place.folder / "respsite.sqlite3"
    assert (place.folder / "respsite.sqlite3-wal").exists()
    both = markers.of(*PROJECTS)
    there = found(place.left(), both)  # before the database is opened, which ends its WAL
    place.remove()
    there |= found(in_sqlite(database), both)
    there |= found((("traces", body) for body in list(collector.bodies)), both)
    check_found(there)


def check_found(there: Mapping[str, set[str]]) -> None:
    """See that nothing was found of the project that keeps nothing, and that the search finds the other's."""
    kept = {place: {form for form in forms if form.startswith(KEPT)} for place, forms in there.items()}
    assert {place: forms - kept[place] for place, forms in there.items() if forms - kept[place]} == {}
    places = [place for place, forms in kept.items() if forms]
    kinds = {place.partition(":")[0] for place in places}
    assert {"database", "disk", "traces"} <= kinds, kinds
    assert any("response" in place for place in places), there
    every = {form for forms in kept.values() for form in forms}
    assert {f"{KEPT}: given, plain", f"{KEPT}: made, plain"} <= every
    assert any("tokens" in form for form in every), every


def test_a_crash_leaves_no_core_dump(tmp_path: Path) -> None:
    server = ClosedServer(tmp_path)
    with server:
        assert server.process is not None
        assert without_dumps(server.process.pid)
        os.kill(server.process.pid, signal.SIGABRT)
        server.process.wait()
    assert not list(tmp_path.glob("**/core*"))
