"""`respsite doctor`: whether containers can be used."""

import asyncio

from engine.errors import reason_of
from responses_app.extensions.containers.making import plain_python, remote_hosts
from responses_app.extensions.containers.sandbox.choosing import choose
from responses_app.extensions.containers.sandbox.hosts import RemoteHost
from responses_app.extensions.containers.sandbox.records import SandboxError
from responses_app.extensions.containers.settings import ContainerSettings
from responses_app.kit.findings import Finding, ok, problem, warning

REACH_HOST = "Check that `respsite sandboxes` runs there, its log, and that SANDBOX_SECRET is the same here and there."
INSTALL_SANDBOX = (
    "Install bubblewrap (apt install bubblewrap), or on a kernel of 6.12 or later: pip install sandlock; "
    "or set SANDBOX=off."
)


async def sandbox(settings: ContainerSettings, seconds: float) -> list[Finding]:
    """Try the sandbox as the server does before code first runs: with code that tries to get out."""
    if settings.sandbox == "off":
        return [ok("sandbox", "SANDBOX=off: no code interpreter")]
    if settings.sandbox_mcp:
        return [ok("sandbox", f"code runs at the MCP server {settings.sandbox_mcp}")]
    if settings.sandbox_hosts:
        return await _hosts(settings, seconds)
    choice = await choose(settings.sandbox, settings.sandbox_python or plain_python())
    if choice.sandbox is None or choice.interpreter is None:
        return [warning("sandbox", f"the code interpreter is refused. {choice.problem}", INSTALL_SANDBOX)]
    return [ok("sandbox", f"{choice.sandbox.name} with {choice.interpreter.executable}; {choice.between_calls()}")]


async def _hosts(settings: ContainerSettings, seconds: float) -> list[Finding]:
    """Ask each host of containers what it has."""

    async def one(host: RemoteHost) -> Finding:
        try:
            async with asyncio.timeout(0.8 * seconds):
                name = await host.ask("check")
        except (SandboxError, TimeoutError) as error:
            return problem("sandbox", f"host {host.address}: {reason_of(error)}", REACH_HOST)
        finally:
            room = host.room
            await host.aclose()
        assert room is not None, "it has answered"
        return ok(
            "sandbox",
            f"host {host.address}: {name}; {room.started} of {room.most} containers in memory, {room.working} at work, "
            f"{room.saved} on disk{'; it stops' if room.is_leaving else ''}",
        )

    return list(await asyncio.gather(*map(one, remote_hosts(settings))))
