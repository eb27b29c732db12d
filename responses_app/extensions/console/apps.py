"""What the console brings: pages of the admin, and pages that watch responses and roll-outs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from responses_app.kit.extension import Extension

if TYPE_CHECKING:
    from django.urls import URLPattern


class Console(Extension):
    """The admin's pages of what the server keeps; Django finds those in `admin` by itself."""

    name = "responses_app.extensions.console"
    about = "admin pages, and pages to watch responses and roll-outs"

    def pages(self) -> Sequence["URLPattern"]:
        """Return the pages that no model has."""
        from django.contrib import admin
        from django.urls import path

        from responses_app.extensions.console.admin.dashboard import dashboard, first_page
        from responses_app.extensions.console.admin.usage import usage
        from responses_app.extensions.console.watch import views as watch
        from responses_app.extensions.console.watch.rollouts import views as rollouts

        return (
            path("admin/", admin.site.admin_view(first_page)),  # before the admin's own
            path("admin/all/", admin.site.admin_view(admin.site.index), name="admin-all"),
            path("admin/dashboard/", admin.site.admin_view(dashboard), name="dashboard"),
            path("admin/usage/", admin.site.admin_view(usage), name="usage"),
            path("watch/responses/<str:response_id>.trace.json", watch.response_trace, name="watch-trace"),
            path("watch/responses/<str:response_id>.json", watch.response_json, name="watch-json"),
            path("watch/responses/<str:response_id>", watch.response, name="watch-response"),
            path("watch/compare", watch.compare, name="watch-compare"),
            path("watch/rollouts", rollouts.rollouts, name="watch-rollouts"),
            path("watch/rollouts/<str:name>", rollouts.rollout, name="watch-rollout"),
        )
