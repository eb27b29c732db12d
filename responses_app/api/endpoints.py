"""All endpoints of the API, by their paths, in the order in which paths are tried; those without a place here last."""

import re
from collections.abc import Iterable, Sequence
from itertools import chain

from responses_app.api import chat, messages, models, openapi, responses, server, stateless
from responses_app.kit.extension import Extension, extensions
from responses_app.kit.resources import modules_of_resources
from responses_app.resources.batches.endpoints import MESSAGES_ENDPOINTS
from responses_app.resources.projects.endpoints import SPEND_LIMITS
from responses_app.web.endpoint import Endpoint


def table_with(loaded: Iterable[Extension]) -> Sequence[Endpoint]:
    """Return the table with the endpoints of extensions. Ends the process where another has a path of theirs.

    Theirs have the place of their tag, also in the OpenAPI document, and those of resources that of their folder; those
    that have no place here come last.
    """
    by_folder: dict[str, Sequence[Endpoint]] = {
        module.__name__.split(".")[-2]: module.ENDPOINTS for module in modules_of_resources("endpoints")
    }
    brought = [(extension.label, endpoint) for extension in loaded for endpoint in extension.endpoints()]
    by_tag: dict[str, list[Endpoint]] = {}
    for _, endpoint in brought:
        by_tag.setdefault(endpoint.tag, []).append(endpoint)
    table = (
        *responses.ENDPOINTS,
        *chat.ENDPOINTS,
        *messages.ENDPOINTS,
        *MESSAGES_ENDPOINTS,
        *stateless.ENDPOINTS,
        *models.ENDPOINTS,
        *by_tag.pop("Engine", ()),
        *by_folder.pop("conversations"),
        *by_folder.pop("files"),
        *by_folder.pop("batches"),
        *by_folder.pop("vector_stores"),
        *by_tag.pop("Containers", ()),
        *by_folder.pop("skills"),
        *by_tag.pop("Rollouts", ()),
        *by_folder.pop("webhooks"),
        *by_folder.pop("projects"),
        *by_folder.pop("audit"),
        *SPEND_LIMITS,
        *by_folder.pop("usage"),
        *by_tag.pop("Playground", ()),
        *openapi.ENDPOINTS,
        *server.ENDPOINTS,
        *chain.from_iterable((*by_folder.values(), *by_tag.values())),
    )
    owners = {id(endpoint): label for label, endpoint in brought}
    patterns = [(owners.get(id(other)), other.path, re.compile(other.regex)) for other in table]
    for label, endpoint in brought:
        example = re.sub(r"\{[^}]*\}", "~", endpoint.path).removeprefix("/")
        for owner, path, pattern in patterns:
            if owner != label and pattern.match(example):
                raise SystemExit(
                    f"respsite: the extension {label!r} brings {endpoint.method} {endpoint.path}, and {path} of "
                    f"{f'the extension {owner!r}' if owner else 'the server'} has this path. Give the endpoint "
                    "another path, or remove the extension from EXTENSIONS."
                )
    return table


ENDPOINTS = table_with(extensions())
