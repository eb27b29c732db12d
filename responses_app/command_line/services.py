"""What `respsite doctor` finds out about what the server needs: engines, searches, the database, Redis.

Also whether the tables are this version's, what time the database and Redis have, and an address to listen on.
"""

import asyncio
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp

from engine.backends.base import BaseEngine
from engine.embeddings.base import BaseEmbeddings
from engine.errors import EngineConfigurationError, EngineError, reason_of
from responses_app.kit.findings import Finding, ok, problem, warning
from responses_app.management.address import base_url
from responses_app.settings.conf import Settings
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


async def others(settings: Settings, seconds: float) -> list[Finding]:
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
T = TypeVar("T")


async def database(settings: Settings, seconds: float) -> list[Finding]:
    """Ask the database for its version, its time, and its tables."""
    from django.db import DatabaseError

    from responses_app.kit.causes import cause_of

    try:
        # 0.8: time is left to say what is wrong before the check as a whole is given up.
        return await in_daemon_thread(partial(_database, max(LEAST_SECONDS, round(0.8 * seconds))))
    except (DatabaseError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        remedy = cause_of(error) or "Check that it runs, and what DATABASE_URL names."
        return [problem("database", f"it cannot be used ({reason})", remedy)]


def _database(connect_seconds: int) -> list[Finding]:
    from django.db import connections
    from django.db.migrations.executor import MigrationExecutor

    from responses_app.kit.causes import ONLY_READS
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


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Run work in a thread that keeps no process alive: a database that says nothing would hold it for ever."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: Exception | None) -> None:
        # Whoever waited has given up.
        if done.done():
            return
        done.set_exception(error) if error is not None else done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        try:
            outcome: tuple[T | None, Exception | None] = (work(), None)
        except Exception as error:  # noqa: BLE001 - it is raised again by who waits
            outcome = (None, error)
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, *outcome)

    threading.Thread(target=run, name="examine", daemon=True).start()
    return await done
