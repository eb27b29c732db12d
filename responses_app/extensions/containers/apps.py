"""The extension `containers`: what runs code of models, in sandboxes."""

from argparse import SUPPRESS, ArgumentParser
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from responses_app.extensions.containers.settings import ContainerSettings
from responses_app.kit.extension import Command, Extension, Look


class ContainersExtension(Extension):
    """Code interpreter, shell and programs, in containers of this server's."""

    name = "responses_app.extensions.containers"
    about = "code interpreter, shell and programs, in sandboxes"
    settings = (ContainerSettings,)

    @classmethod
    def commands(cls) -> Iterable[Command]:
        """Return the command that has containers for servers."""
        about = (
            "Run containers of the code interpreter for servers: on their own machine, or apart from the web workers."
        )
        yield Command("sandboxes", about, _arguments, f"{cls.name}.command:run")

    def endpoints(self) -> Sequence[Any]:
        """Return `/v1/containers`."""
        from responses_app.extensions.containers.endpoints import ENDPOINTS

        return ENDPOINTS

    def tools(self, server: Any) -> Iterable[Any]:
        """Return the tools that run code of models."""
        from responses_app.extensions.containers.tools import code_tools

        return code_tools(server)

    def beside(self, settings: Any) -> AbstractContextManager[Any]:
        """Return what keeps a host of containers, but where somebody else has them, or nobody may."""
        if settings.sandbox == "off" or settings.sandbox_mcp or settings.sandbox_hosts:
            return nullcontext(settings)
        from responses_app.extensions.containers.keeper import SandboxKeeper

        return SandboxKeeper(settings)

    def figures(self, site: Any) -> Mapping[str, str]:
        """Return how many containers there are."""
        from responses_app.extensions.containers.tools import interpreter_of

        interpreter = interpreter_of(site.tools)
        if interpreter is None:
            return {}
        hosts = () if interpreter.made is None else interpreter.made.containers.hosts
        rooms = [host.room for host in hosts if host.room is not None]
        started, most, saved = (sum(getattr(room, name) for room in rooms) for name in ("started", "most", "saved"))
        text = f"{started:,} of at most {most:,} started, {saved:,} saved" if rooms else "none yet"
        return {"Containers": text}

    def looks(self) -> Mapping[str, Look]:
        """Return what tries the sandbox."""
        from responses_app.extensions.containers.doctor import sandbox

        return {"sandbox": sandbox}


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        metavar="ADDRESS",
        help="where servers find it, as they have it in SANDBOX_HOSTS: HOST:PORT, which needs SANDBOX_SECRET, "
        "SANDBOX_TLS_CERT and SANDBOX_TLS_KEY, or the path of a Unix socket",
    )
    # `respsite serve` starts one with descriptors that it hands on.
    parser.add_argument("--listener", type=int, help=SUPPRESS)
    parser.add_argument("--lifeline", type=int, help=SUPPRESS)
    parser.add_argument("--heartbeat", type=int, help=SUPPRESS)
