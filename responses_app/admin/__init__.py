"""Signing in to pages, pages of errors, and Django's own pages of users and groups."""

from django.contrib import admin

from responses_app.admin import users  # noqa: F401 - registers on import

admin.site.site_header = admin.site.site_title = "respsite"
admin.site.index_title = "Administration"
admin.site.site_url = None
admin.site.login_template = "admin/respsite/login.html"
admin.site.enable_nav_sidebar = False  # the head of each page leads everywhere
