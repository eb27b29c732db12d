"""Paths of Django's own part; the API's are in `responses_app.urls`, behind `ApiMiddleware`."""

from django.contrib import admin
from django.urls import path
from django.views.generic import RedirectView

urlpatterns = [
    path("admin/", admin.site.urls),
    path("", RedirectView.as_view(url="/admin/", permanent=False)),
]
