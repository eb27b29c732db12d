"""The application with the engine that tests can hold, and with modules that browsers keep.

Else a page would ask for each of its 60 modules at each load, whether there is a newer one.
"""

from responses_app.web.servers import layers
from responses_app.wiring.engines import BACKENDS

layers.ASKED = layers.FRESH
BACKENDS["demo"] = "tests.system.playground.held.HeldEngine"

from respsite.asgi import application as application  # noqa: E402 - which makes the engine
