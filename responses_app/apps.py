"""The Responses API as a Django app."""

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class ResponsesConfig(AppConfig):
    """Responses, their items, and the transports that serve them."""

    name = "responses_app"
    verbose_name = "Responses"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks, and what keeps the groups of the roles."""
        from responses_app.stores.database.roles import make_roles
        from responses_app.wiring import engines  # noqa: F401 - registers on import, after the apps are ready

        # For each app: the last ones bring permissions, too.
        post_migrate.connect(make_roles)
