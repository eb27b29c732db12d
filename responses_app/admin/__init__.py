"""Django's admin: stored responses as conversations, workers, and a dashboard.

It reads, cancels and deletes responses, makes and revokes API keys, changes the limits of projects, and sends webhooks
again. All of that is recorded in the audit trail (`audit`).
"""

from django.contrib import admin

from responses_app.admin import (  # noqa: F401 - each registers its pages
    audit,
    conversations,
    dashboard,
    projects,
    resources,
    responses,
    webhooks,
)

admin.site.site_header = admin.site.site_title = "respsite"
admin.site.index_title = "Administration"
admin.site.site_url = None
admin.site.login_template = "admin/respsite/login.html"
admin.site.enable_nav_sidebar = False  # the head of each page leads everywhere
