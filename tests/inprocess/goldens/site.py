"""The OpenAPI document, the reference, the commands, the database's schema and the admin's headings, as text."""

import html
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import httpx

from docs.extension import GENERATED

SHOWN = re.compile(r"<(title|h1|h2|h3|legend|th|caption)\b[^>]*>(.*?)</\1>", re.DOTALL)
NOT_SEEN = ("modules", "make-targets")  # of those who change the server, not of those who use it


def openapi(folder: Path, **settings: str) -> str:
    """Return the OpenAPI document that a server with these settings has."""
    from tests.kit.inprocess import Server

    with Server(folder, **settings) as server:
        answer = httpx.get(f"{server.url}/openapi.json", headers={"host": "localhost"})
    assert answer.status_code == 200
    return json.dumps(answer.json(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def reference() -> list[tuple[str, str]]:
    """Return what the documentation says of settings and of commands, and all else that is computed for it."""
    texts = {name: make() for name, make in GENERATED.items() if name not in NOT_SEEN}
    commands = [f"# {name}\n\n{texts.pop(name)}\n" for name in ("program", "manage-commands")]
    settings = texts.pop("settings")
    others = [f"# {name}\n\n{text}\n" for name, text in texts.items()]
    return [
        ("settings.md", f"{settings}\n"),
        ("commands.md", "\n".join(commands)),
        ("reference.md", "\n".join(others)),
    ]


def schema() -> str:
    """Return our tables and indexes as SQLite has them after all migrations."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT sql FROM sqlite_master WHERE tbl_name LIKE 'responses_app%' AND sql IS NOT NULL")
        return "".join(sorted(sql.replace(", ", ",\n  ") + ";\n" for (sql,) in cursor.fetchall()))


def admin_headings() -> str:
    """Return titles, headings and the heads of tables of every page of the admin."""
    from django.contrib import admin
    from django.contrib.auth.models import User
    from django.test import Client
    from django.urls import NoReverseMatch, reverse

    from tests.inprocess.admin import samples

    samples.agent_loop()
    samples.workers(datetime.now(UTC))
    client = Client()
    pages = [("logged out", "/admin/login/")]
    told = [_page(client, *page) for page in pages]
    client.force_login(User.objects.create_superuser("root"))
    pages = [("begin", "/admin/all/")]
    for model in sorted(admin.site._registry, key=lambda model: model._meta.label):
        place = f"admin:{model._meta.app_label}_{model._meta.model_name}"
        for page in ("changelist", "add", "change"):
            row = model._default_manager.order_by("pk").first()
            if page == "change" and row is None:
                continue
            try:
                url = reverse(f"{place}_{page}", args=[row.pk] if page == "change" and row else [])
            except NoReverseMatch:
                continue
            pages.append((f"{model._meta.label} {page}", url))
    return "\n".join([*told, *(_page(client, *page) for page in pages)])


def _page(client: object, name: str, url: str) -> str:
    answer = client.get(url, headers={"host": "localhost"})  # type: ignore[attr-defined]
    shown = [f"{found[1]}: {_text(found[2])}" for found in SHOWN.finditer(answer.content.decode())]
    return "\n".join([f"=== {name}", f"{answer.status_code} {url}", *(line for line in shown if line[-1] != " "), ""])


def _text(inner: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", inner)).split())
