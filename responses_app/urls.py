"""The API's paths, resolved by `ApiMiddleware`. Base URLs without /v1 work too: some clients leave it out."""

from django.urls import re_path

from responses_app.views import health, models, responses

urlpatterns = [
    re_path(r"^(?:v1/)?responses/?$", responses.create),
    re_path(r"^(?:v1/)?models/?$", models.index),
    re_path(r"^(?:v1/)?models/(?P<model>.+)$", models.detail),
    re_path(r"^health/?$", health.health),
    re_path(r"^ready/?$", health.ready),
]
