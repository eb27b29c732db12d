"""What the server needs to do its work: engines, a sandbox, searches, other servers, and an address to listen on."""

import asyncio
import shutil
from urllib.parse import urlsplit

import aiohttp

from engine.backends.base import BaseEngine
from engine.embeddings.base import BaseEmbeddings
from engine.errors import EngineConfigurationError, EngineError
from responses_app.command_line.examining.findings import Finding, ok, problem, warning
from responses_app.management.address import base_url
from responses_app.settings.conf import Settings
from responses_app.settings.models import ModelSettings
from responses_app.wiring.embedding_engines import embedding_models, make_embeddings
from responses_app.wiring.engines import make_engine

MEND = "Mend this setting: the server does not start so."
INSTALL_SANDBOX = (
    "Install bubblewrap (apt install bubblewrap), or on a kernel of 6.12 or later: pip install sandlock; "
    "or set SANDBOX=off."
)


async def engines(settings: Settings, seconds: float) -> list[Finding]:
    """Reach the engine of every model. What is loaded into the server's own process is not loaded for this."""
    generating = (_engine(model, seconds) for model in settings.served)
    embedding = (_embeddings(model, seconds) for model in embedding_models(settings))
    return list(await asyncio.gather(*generating, *embedding))


async def _engine(model: ModelSettings, seconds: float) -> Finding:
    named = f"{model.name} ({model.engine})"
    if model.engine in ("demo", "scripted"):
        return ok("engine", f"{named}: no model is loaded, answers are made by rules")
    if model.engine == "vllm":
        return _checked(named, make_engine(model), f"vLLM is installed; `respsite serve` loads {model.model}")
    return await _started(named, make_engine(model), seconds)


async def _embeddings(model: ModelSettings, seconds: float) -> Finding:
    named = f"{model.name} ({model.engine})"
    if model.engine == "hashing":
        return ok("engine", f"{named}: embeddings without a model, of the words alone")
    return await _started(named, make_embeddings(model), seconds)


def _checked(named: str, engine: BaseEngine, text: str) -> Finding:
    try:
        engine.check()
    except EngineConfigurationError as error:
        return problem("engine", f"{named}: {error}", MEND)
    return ok("engine", f"{named}: {text}")


async def _started(named: str, engine: BaseEngine | BaseEmbeddings, seconds: float) -> Finding:
    try:
        engine.check()
        async with asyncio.timeout(0.8 * seconds):
            info = await engine.start()
        return ok("engine", f"{named}: {info.max_model_len} tokens of context, {info.detail}")
    except EngineConfigurationError as error:
        return problem("engine", f"{named}: {error}", MEND)
    except (EngineError, TimeoutError) as error:
        reason = str(error) or f"it did not answer within {0.8 * seconds:.1f} s"
        advice = (
            "Check that vLLM runs there (`vllm serve`), what ENGINE_URL, MODELS and EMBEDDINGS_URL name, and its log."
        )
        return problem("engine", f"{named}: {reason}", advice)
    finally:
        await engine.aclose()


async def sandbox(settings: Settings, seconds: float) -> list[Finding]:
    """Try the sandbox as the server does before code first runs: with code that tries to get out."""
    if settings.sandbox == "off":
        return [ok("sandbox", "SANDBOX=off: no code interpreter")]
    if settings.sandbox_mcp:
        return [ok("sandbox", f"code runs at the MCP server {settings.sandbox_mcp}")]
    from responses_app.tools.sandbox.choosing import choose
    from responses_app.wiring.server_tools import plain_python

    choice = await choose(settings.sandbox, settings.sandbox_python or plain_python())
    if choice.sandbox is None or choice.interpreter is None:
        return [warning("sandbox", f"the code interpreter is refused. {choice.problem}", INSTALL_SANDBOX)]
    return [ok("sandbox", f"{choice.sandbox.name} with {choice.interpreter.executable}; {choice.between_calls()}")]


async def search(settings: Settings, seconds: float) -> list[Finding]:
    """Search for something."""
    if not settings.search_url:
        through = f"through the MCP server {settings.search_mcp}" if settings.search_mcp else "none (SEARCH_URL)"
        return [ok("search", through)]
    from responses_app.tools.browser.backends.json_search import json_search
    from responses_app.tools.browser.searching import SearchFailed

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


async def others(settings: Settings, seconds: float) -> list[Finding]:
    """Look whether MCP servers and the image service can be reached; no program is started."""
    found = [_program(label, access.command[0]) for label, access in settings.mcp_servers.items() if access.command]
    urls = {f"MCP server {label}": access.url for label, access in settings.mcp_servers.items() if access.url}
    if settings.image_service_url:
        urls["image service"] = settings.image_service_url
    reached = await asyncio.gather(*(_reached(name, url, 0.8 * seconds) for name, url in urls.items()))
    return [*found, *reached]


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
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "no answer"
        return problem("tools", f"{name}: {parts.hostname}:{port} cannot be reached ({reason})", "Check that it runs.")
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
    said = ", ".join(f"{name}: {body[name]}" for name in ("server", "database", "engine") if body.get(name) != "ok")
    return [problem("address", f"the server at {url} is not ready ({said})", "Look at its log.")]
