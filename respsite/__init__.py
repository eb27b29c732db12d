"""Django's project: settings, paths and the ASGI application."""

from responses_app import __version__ as __version__
