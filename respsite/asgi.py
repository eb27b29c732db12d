"""The ASGI application: `daphne respsite.asgi:application`, or any other ASGI server."""

import os
from functools import partial

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "respsite.settings")

from django.core.asgi import get_asgi_application

from respsite.static import StaticFiles

django_application = StaticFiles(get_asgi_application())  # sets Django up: imports below need that

from channels.routing import ProtocolTypeRouter, URLRouter

from engine.errors import EngineConfigurationError
from responses_app.bodies import Bodies, BodyRules
from responses_app.exposure import Exposure
from responses_app.protocol import ids
from responses_app.routing import websocket_urlpatterns
from responses_app.servers.backpressure import Backpressure
from responses_app.servers.daphne import hook_daphne
from responses_app.servers.lifecycle import Lifecycle
from responses_app.servers.uvicorn import UvicornHook
from responses_app.wiring import get_site

site = get_site()
try:
    site.engine.engine.check()
except EngineConfigurationError as error:
    raise SystemExit(f"respsite: {error}") from None
lifecycle = Lifecycle(site.start, site.aclose, hurry=site.registry.hurry)
lifecycle.hook_daphne()

rules = BodyRules(site.settings.max_body_bytes, site.settings.request_arrival_seconds)
new_request_id = partial(site.new_id, ids.REQUEST)
hook_daphne(rules, new_request_id)

exposure = Exposure(
    Bodies(
        ProtocolTypeRouter(
            {
                "http": django_application,
                "websocket": URLRouter(websocket_urlpatterns),
                "lifespan": UvicornHook(lifecycle, rules),
            }
        ),
        rules,
        new_request_id=new_request_id,
    ),
    any_host="*" in site.settings.allowed_hosts,
)
exposure.hook_daphne()

application = Backpressure(
    exposure,
    stall_seconds=site.settings.stream_stall_seconds,
    max_message_bytes=site.settings.websocket_max_message_bytes,
)
