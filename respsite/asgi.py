"""The ASGI application: `daphne respsite.asgi:application`, or any other ASGI server."""

import gc
import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "respsite.settings")
# Modules and tables are there for good: the collector would look through them again and again while they are loaded,
# which is a sixth of the time, and find nothing.
gc.disable()

import django

django.setup(set_prefix=False)  # imports below need that

from engine.errors import EngineConfigurationError
from responses_app.observing.memory import forbid_core_dumps, give_memory_back
from responses_app.wiring.site import get_site
from respsite.application import make_application

give_memory_back(os.environ)
site = get_site()
if not site.settings.core_dumps:
    forbid_core_dumps()
try:
    site.engines.check()
except EngineConfigurationError as error:
    raise SystemExit(f"respsite: {error}") from None

application = make_application(site)

gc.freeze()
gc.enable()
