"""Where clients find the server that the settings describe, and where it finds out about clients."""

from responses_app.settings.conf import Settings


def base_url(own: Settings) -> str:
    """Return what SDKs call the base URL of the server that `respsite serve` starts."""
    return f"http://{_shown_host(own)}:{own.port}/v1"


def forwarded_headers(own: Settings) -> dict[str, str]:
    """Return the arguments of daphne's `Server` that let it believe a proxy; none without one.

    daphne takes the first address of `X-Forwarded-For`, so the proxy has to replace what a client sent there.
    """
    if own.behind_proxy == "no":
        return {}
    return {
        "proxy_forwarded_address_header": "X-Forwarded-For",
        "proxy_forwarded_proto_header": "X-Forwarded-Proto",
    }


def _shown_host(own: Settings) -> str:
    """Return a host name that a client can use."""
    if own.host in ("0.0.0.0", "::"):
        name = own.allowed_hosts[0].lstrip(".")
        return "127.0.0.1" if name == "*" else name
    return f"[{own.host}]" if ":" in own.host else own.host
