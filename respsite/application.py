"""The ASGI application around a site: all layers, in their order."""

from collections.abc import Callable
from functools import partial
from typing import cast

from channels.routing import ProtocolTypeRouter, URLRouter

from responses_app.auth.proxies import TrustedProxies
from responses_app.protocol.errors import ApiError
from responses_app.resources.files.fields import FileBounds
from responses_app.routing import websocket_urlpatterns
from responses_app.settings.conf import Settings
from responses_app.web.bodies import Application, Bodies, BodyRules
from responses_app.web.endpoint import line_of
from responses_app.web.middleware import let_in
from responses_app.web.servers.backpressure import Backpressure
from responses_app.web.servers.daphne import hook_daphne, peer_of
from responses_app.web.servers.heads import Heads, Senders
from responses_app.web.servers.inflow import FrameRules
from responses_app.web.servers.layers import Exposure, Handler, Lifecycle, Served, StaticFiles, traced
from responses_app.web.servers.uvicorn import UvicornHook
from responses_app.wiring.site import Site


def make_application(site: Site) -> Application:
    """Return the application that serves a site; it starts and stops the site with whatever server runs it."""
    site.make()  # all of it, before anybody waits for an answer
    lifecycle = Lifecycle(partial(site.start, line_of), site.aclose, hurry=site.registry.hurry.set)
    lifecycle.hook_daphne()
    own = site.settings
    rules = body_rules(own, site.watch.metrics.turned_away)
    frame_rules = FrameRules(
        arrival_seconds=own.request_arrival_seconds,
        max_message_bytes=own.websocket_max_message_bytes,
        max_unfinished_bytes=max(own.websocket_max_unfinished_bytes, 2 * own.websocket_max_message_bytes),
    )
    hook_daphne(rules, site.answer_headers)
    http = traced(cast(Application, StaticFiles(Handler(site))), site.traces)
    exposure = Exposure(
        Bodies(
            ProtocolTypeRouter(
                {
                    "http": Served(http, site.draining.serving),
                    "websocket": URLRouter(websocket_urlpatterns),
                    "lifespan": UvicornHook(
                        lifecycle, rules, frame_rules, site.answer_headers, grace=own.shutdown_grace_seconds
                    ),
                }
            ),
            rules,
            headers=site.answer_headers,
        ),
        any_host="*" in own.allowed_hosts,
        asks_nobody=own.auth == "off",
        exposed=site.door.expose,
    )
    exposure.hook_daphne()
    application = Backpressure(
        exposure,
        stall_seconds=own.stream_stall_seconds,
        max_message_bytes=own.websocket_max_message_bytes,
        frame_rules=frame_rules,
        is_stopping=lifecycle.is_stopping,
    )
    site.draining.is_sending = application.is_unsent
    # Outermost, as it asks the server's own `send` who calls.
    senders = Senders(None if own.behind_proxy == "no" else TrustedProxies(own.trusted_proxies), peer_of)
    return Heads(application, senders, site.answer_headers, rules.refused)


def body_rules(own: Settings, refused: Callable[[ApiError], None]) -> BodyRules:
    """Return how much of a body is taken, as the settings say; `refused` is told of what is not."""
    # What a file may have at all; which purpose it has stands in its form, and is looked at once that is here.
    max_file_bytes, max_file_setting = FileBounds(own.file_max_bytes, own.batch_max_bytes).largest
    return BodyRules(
        own.max_body_bytes,
        own.request_arrival_seconds,
        refused=refused,
        let_in=let_in,
        max_file_bytes=max_file_bytes,
        max_file_setting=max_file_setting,
        max_skill_bytes=max(own.skill_max_bytes, own.skill_max_unpacked_bytes),
    )
