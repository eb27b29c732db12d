"""The server that the settings describe, and where clients find it."""

from collections.abc import Sequence
from typing import Any

from channels.routing import get_default_application

from responses_app.settings.conf import Settings


def base_url(own: Settings) -> str:
    """Return what SDKs call the base URL of the server that `respsite serve` starts."""
    return f"http://{_shown_host(own)}:{own.port}/v1"


def daphne_server(endpoints: Sequence[str], **more: Any) -> Any:
    """Return daphne's `Server`.

    It is not told of proxies: it would believe the first address of `X-Forwarded-For`, which a client can choose. The
    application finds out who is behind them (`web.servers.heads`).
    """
    from daphne.server import Server  # installs Twisted's reactor: not before it is needed

    return Server(
        application=get_default_application(),
        endpoints=endpoints,
        websocket_timeout=-1,  # a connection's life is WEBSOCKET_LIFETIME_SECONDS, said to the client
        verbosity=0,
        **more,
    )


def _shown_host(own: Settings) -> str:
    """Return a host name that a client can use."""
    if own.host in ("0.0.0.0", "::"):
        # ".example.com" stands for all names below it, and for itself.
        name = own.allowed_hosts[0].lstrip(".")
        return "127.0.0.1" if name == "*" else name
    return f"[{own.host}]" if ":" in own.host else own.host
