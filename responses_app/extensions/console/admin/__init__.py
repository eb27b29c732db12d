"""Pages of Django's admin: stored responses as conversations, workers, and a dashboard.

They read, cancel and delete responses, make and revoke API keys, change the limits of projects, and send webhooks
again. All of that is recorded in the audit trail (`audit`).
"""

from responses_app.extensions.console.admin import (  # noqa: F401 - each registers its pages
    audit,
    conversations,
    dashboard,
    projects,
    resources,
    responses,
    webhooks,
)
