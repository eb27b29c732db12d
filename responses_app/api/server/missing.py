"""What is answered where nothing is served at all, outside of the API too: JSON, in OpenAI's shape."""

from django.http import HttpRequest, HttpResponse
from django.views.defaults import page_not_found

from responses_app.web.http import error_response
from responses_app.web.routes import path_not_found

PEOPLES = ("/admin/", "/docs/", "/watch/")  # below these are pages for people


def missing(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Say what there is (404)."""
    if request.path_info.startswith(PEOPLES):
        return page_not_found(request, exception)
    response = error_response(path_not_found(request.path_info))
    response["x-content-type-options"] = "nosniff"
    return response
