"""`GET /docs/…`: the pages of `docs/`, as `make docs` has built them, for whoever asks: they tell nothing of a project.

They lie in `responses_app/docs_site/`, in a wheel too. Whatever a path says, nothing outside of that folder is read.
"""

import mimetypes
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase, HttpResponsePermanentRedirect
from django.shortcuts import render
from django.utils.cache import get_conditional_response
from django.utils.http import quote_etag
from django.views.decorators.http import require_safe

import responses_app

SITE = Path(responses_app.__file__).resolve().parent / "docs_site"
START = "index.html"
ASKED = "no-cache"  # a 304 each time, so that pages and what they load are of one build
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}  # of any machine


@require_safe
def docs(request: HttpRequest, path: str) -> HttpResponseBase:
    """Answer with a file of the site; for a folder with its start page. Raises `Http404`."""
    is_built = (SITE / START).is_file()
    files = _known_files(SITE) if is_built and not settings.DEBUG else _files(SITE)
    if START not in files:
        return render(request, "docs_missing.html", status=404 if path else 200)
    if path and f"{path}/{START}" in files:
        return HttpResponsePermanentRedirect(f"{request.path}/")
    file = files.get(f"{path}{START}" if path == "" or path.endswith("/") else path)
    if file is None:
        raise Http404
    return _answer(request, file)


def _files(site: Path) -> Mapping[str, Path]:
    """Return what can be asked for: a name that is not among them opens nothing."""
    files = (file for file in site.rglob("*") if file.is_file() and not file.is_symlink())
    return {file.relative_to(site).as_posix(): file for file in files}


@cache
def _known_files(site: Path) -> Mapping[str, Path]:
    """Return what the site had when it was first asked for: a server that runs keeps its pages."""
    return _files(site)


def _answer(request: HttpRequest, file: Path) -> HttpResponseBase:
    try:
        found = file.stat()
    except FileNotFoundError:  # the site has been built again since
        raise Http404 from None
    etag = quote_etag(f"{found.st_mtime_ns:x}-{found.st_size:x}")
    answer = get_conditional_response(request, etag=etag)
    if answer is None:
        kind = TYPES.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        answer = HttpResponse(file.read_bytes(), content_type=kind)
        if kind.startswith("text/"):
            answer["Content-Type"] = f"{kind}; charset=utf-8"
    answer["ETag"] = etag
    answer["Cache-Control"] = ASKED
    answer["X-Content-Type-Options"] = "nosniff"
    return answer
