"""The API's paths, made of the table of endpoints; `ApiMiddleware` finds them here. Base URLs without /v1 work too."""

from django.urls import re_path

from responses_app.api.endpoints import ENDPOINTS
from responses_app.web.endpoint import routes_of

urlpatterns = [re_path(route.regex, route) for route in routes_of(ENDPOINTS)]
