"""The ASGI application: `daphne respsite.asgi:application`, or any other ASGI server."""

import gc
import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "respsite.settings")
# Modules and tables are there for good: the collector would look through them again and again while they are loaded,
# which is a sixth of the time, and find nothing.
gc.disable()

import django

django.setup(set_prefix=False)  # imports below need that

from functools import partial
from typing import cast

from channels.routing import ProtocolTypeRouter, URLRouter

from engine.errors import EngineConfigurationError
from responses_app.observing.allocator import give_memory_back
from responses_app.observing.dumps import forbid_core_dumps
from responses_app.protocol.files.files import FileBounds
from responses_app.routing import websocket_urlpatterns
from responses_app.web.bodies import Application, Bodies, BodyRules
from responses_app.web.endpoint import line_of
from responses_app.web.middleware import let_in
from responses_app.web.rollouts import RolloutPaths
from responses_app.web.servers.backpressure import Backpressure
from responses_app.web.servers.daphne import hook_daphne
from responses_app.web.servers.inflow import FrameRules
from responses_app.web.servers.layers import Exposure, Handler, Lifecycle, Served, StaticFiles, traced
from responses_app.web.servers.uvicorn import UvicornHook
from responses_app.wiring.site import get_site

give_memory_back(os.environ)
site = get_site()
if not site.settings.core_dumps:
    forbid_core_dumps()
try:
    site.engines.check()
except EngineConfigurationError as error:
    raise SystemExit(f"respsite: {error}") from None
lifecycle = Lifecycle(partial(site.start, line_of), site.aclose, hurry=site.registry.hurry.set)
lifecycle.hook_daphne()

# What a file may have at all; which purpose it has stands in its form, and is looked at once that is here.
max_file_bytes, max_file_setting = FileBounds(site.settings.file_max_bytes, site.settings.batch_max_bytes).largest
rules = BodyRules(
    site.settings.max_body_bytes,
    site.settings.request_arrival_seconds,
    refused=site.watch.metrics.turned_away,
    let_in=let_in,
    max_file_bytes=max_file_bytes,
    max_file_setting=max_file_setting,
    max_skill_bytes=max(site.settings.skill_max_bytes, site.settings.skill_max_unpacked_bytes),
)
frame_rules = FrameRules(
    arrival_seconds=site.settings.request_arrival_seconds,
    max_unfinished_bytes=max(
        site.settings.websocket_max_unfinished_bytes, 2 * site.settings.websocket_max_message_bytes
    ),
)
hook_daphne(rules, site.answer_headers)

exposure = Exposure(
    Bodies(
        ProtocolTypeRouter(
            {
                "http": Served(traced(cast(Application, StaticFiles(Handler())), site.traces), site.draining.serving),
                "websocket": URLRouter(websocket_urlpatterns),
                "lifespan": UvicornHook(
                    lifecycle, rules, frame_rules, site.answer_headers, grace=site.settings.shutdown_grace_seconds
                ),
            }
        ),
        rules,
        headers=site.answer_headers,
    ),
    any_host="*" in site.settings.allowed_hosts,
    asks_nobody=site.settings.auth == "off",
    exposed=site.door.expose,
)
exposure.hook_daphne()

application = Backpressure(
    RolloutPaths(exposure),
    stall_seconds=site.settings.stream_stall_seconds,
    max_message_bytes=site.settings.websocket_max_message_bytes,
    frame_rules=frame_rules,
    is_stopping=lifecycle.is_stopping,
)
site.draining.is_sending = application.is_unsent

gc.freeze()
gc.enable()
