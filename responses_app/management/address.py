"""The server that the settings describe: where clients find it, and where it finds out about clients."""

from collections.abc import Sequence
from typing import Any

from channels.routing import get_default_application

from responses_app.settings.conf import Settings


def base_url(own: Settings) -> str:
    """Return what SDKs call the base URL of the server that `respsite serve` starts."""
    return f"http://{_shown_host(own)}:{own.port}/v1"


def daphne_server(own: Settings, endpoints: Sequence[str], **more: Any) -> Any:
    """Return daphne's `Server`, which believes a proxy where the settings say that there is one.

    daphne takes the first address of `X-Forwarded-For`, so the proxy has to replace what a client sent there.
    """
    from daphne.server import Server  # installs Twisted's reactor: not before it is needed

    if own.behind_proxy != "no":
        more["proxy_forwarded_address_header"] = "X-Forwarded-For"
        more["proxy_forwarded_proto_header"] = "X-Forwarded-Proto"
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
