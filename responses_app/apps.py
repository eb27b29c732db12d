"""The Responses API as a Django app."""

from django.apps import AppConfig


class ResponsesConfig(AppConfig):
    """Responses, their items, and the transports that serve them."""

    name = "responses_app"
    verbose_name = "Responses"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from responses_app.wiring import engines  # noqa: F401 - registers on import, after the apps are ready
