"""Pages of what did not work, in the place of Django's: each says what it was, and what helps.

They are made without the database and without a session, which may be what is broken.
"""

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import REASON_BAD_REFERER, REASON_INSECURE_REFERER, REASON_NO_REFERER
from django.template.loader import render_to_string

from responses_app.api.server import missing

PEOPLES = ("/admin/", "/docs/", "/watch/")  # below these are pages for people
TOO_MUCH = "The server does not take this form: it is too large, or it was damaged on its way. Go back and try again."
NOT_ALLOWED = "Your user may not do this. An administrator of this server can give it the role that may."
NOTHING_HERE = "There is nothing at this address. It may have been deleted, or a part of the address is missing."
BROKEN = "Something broke in the server. Try again later. Its operator finds the reason in the server's log."
EXPIRED = "The form had expired, or the browser sent no cookie with it. Open the page again, and send it once more."
NO_REFERER = "The browser does not say which page the form came from. Let it send the header Referer to this server."
ELSEWHERE = (
    "The form came from %s, and the server does not know that as its own address: to it, you called %s. If you did not "
    "open the form on this server, do not send it again."
)
FOR_OPERATORS = (
    "If it is the address of this server, a proxy in front of it is not in its settings yet. Its operator sets "
    "BEHIND_PROXY=%s and CSRF_TRUSTED_ORIGINS=%s, and starts it again: see Deployment in the documentation."
)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Say why a form was not taken (403); Django's `CSRF_FAILURE_VIEW`."""
    origin = _origin(request, reason)
    if reason == REASON_NO_REFERER:
        return problem_page("The form was not taken", NO_REFERER, status=403)
    if not origin:
        return problem_page("The form was not taken", EXPIRED, status=403)
    called = f"{request.scheme}://{request.get_host()}"
    operator = FOR_OPERATORS % ("tls" if origin.startswith("https:") else "http", origin)
    return problem_page("The form was not taken", ELSEWHERE % (origin, called), operator, status=403)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Say that a request is not taken (400); Django's `handler400`."""
    return problem_page("The form was not taken", TOO_MUCH, status=400)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Say that a user may not do this (403); Django's `handler403`."""
    return problem_page("Not allowed", NOT_ALLOWED, status=403)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Say that there is nothing (404): as a page to people, else in the API's shape; Django's `handler404`."""
    if request.path_info.startswith(PEOPLES):
        return problem_page("Nothing here", NOTHING_HERE, status=404)
    return missing(request, exception)


def broken(request: HttpRequest) -> HttpResponse:
    """Say that something broke (500); Django's `handler500`."""
    return problem_page("Something broke", BROKEN, status=500)


def _origin(request: HttpRequest, reason: str) -> str:
    """Return where a form came from that was refused for that; "" where it was refused for something else."""
    if reason.startswith("Origin checking failed"):
        return str(request.META.get("HTTP_ORIGIN", ""))
    beginning = REASON_BAD_REFERER.partition("%s")[0]
    if reason.startswith((beginning, REASON_INSECURE_REFERER)) and reason != REASON_NO_REFERER:
        return "/".join(str(request.META.get("HTTP_REFERER", "")).split("/")[:3])
    return ""


def problem_page(title: str, *paragraphs: str, status: int) -> HttpResponse:
    """Return a page with these paragraphs, of which the first one stands out."""
    context = {"title": title, "paragraphs": paragraphs, "site_title": admin.site.site_title, "has_permission": False}
    return HttpResponse(render_to_string("admin/respsite/problem.html", context), status=status)
