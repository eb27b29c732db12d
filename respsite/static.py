"""Files of the admin's pages, served by the application itself: ASGI servers serve none, and no other is needed."""

from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.exceptions import SuspiciousFileOperation
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase

FRESH = "max-age=300, stale-while-revalidate=86400"  # then a 304; names do not change with a new version
ASKED = "no-cache"  # a 304 each time: modules that import each other have to be of one version
MODULES = "/static/playground/"


class StaticFiles(ASGIStaticFilesHandler):
    """Answers the paths under STATIC_URL, with DEBUG or without; all others go on, and cost a comparison.

    Django calls its handler slow for a busy site: it looks a file up in the folders of its apps at each request. That
    is a thread of its own, and an admin has few readers.
    """

    def serve(self, request: HttpRequest) -> HttpResponseBase:
        """Answer with a file that browsers may keep for a while."""
        try:
            answer: HttpResponseBase = super().serve(request)
        except (SuspiciousFileOperation, ValueError) as error:  # a path out of the folder, or with a NUL
            raise Http404 from error
        answer["Cache-Control"] = ASKED if request.path.startswith(MODULES) else FRESH
        answer["X-Content-Type-Options"] = "nosniff"
        return answer
