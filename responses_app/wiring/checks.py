"""System checks: what `respsite manage check` and `make run` say before anything is served."""

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from engine.errors import EngineConfigurationError
from responses_app.wiring.embedding_engines import check_embeddings
from responses_app.wiring.engines import check_engines


@register()
def check_engine(app_configs: Sequence[Any] | None, **options: Any) -> list[CheckMessage]:
    """Tell wrong engine options before the engine is started."""
    try:
        check_engines(settings.RESPSITE)
        check_embeddings(settings.RESPSITE)
    except EngineConfigurationError as error:
        return [Error(str(error), id="respsite.E001")]
    return []


@register()
def check_environment(app_configs: Sequence[Any] | None, **options: Any) -> list[CheckMessage]:
    """Pass on what the environment gave reason to doubt."""
    return [Warning(text, id="respsite.W001") for text in settings.RESPSITE_WARNINGS]
