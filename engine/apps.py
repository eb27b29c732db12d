"""The one file of this package that knows Django."""

from django.apps import AppConfig


class EngineConfig(AppConfig):
    """Tokens and Harmony."""

    name = "engine"
    verbose_name = "Engines"
