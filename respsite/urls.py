"""Paths of Django's own part; the API's are in `responses_app.urls`, behind `ApiMiddleware`."""

from django.contrib import admin
from django.urls import path

from responses_app.admin.dashboard import dashboard
from responses_app.admin.login import login
from responses_app.playground.page import playground

urlpatterns = [
    path("admin/login/", login),  # before the admin's own
    path("admin/dashboard/", admin.site.admin_view(dashboard), name="dashboard"),
    path("admin/", admin.site.urls),
    path("", playground, name="playground"),
]
