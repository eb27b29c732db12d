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
    """Return the table with the endpoints of extensions. Ends the process where one would hide another.

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
    places = [(owners.get(id(each)), each, re.compile(each.regex), _example(each)) for each in table]
    for place, (label, endpoint, own, example) in enumerate(places):
        if label is None:
            continue
        for other_place, (owner, other, pattern, its_example) in enumerate(places):
            # Behind it in the table the other would never be called; before it the extension's would not.
            takes = pattern.match(example) or (place < other_place and own.match(its_example))
            if owner != label and takes:
                raise SystemExit(
                    f"respsite: the extension {label!r} brings {endpoint.method} {endpoint.path}, and {other.path} of "
                    f"{f'the extension {owner!r}' if owner else 'the server'} has this path. Give the endpoint "
                    "another path, or remove the extension from EXTENSIONS."
                )
    return table


def _example(endpoint: Endpoint) -> str:
    """Return a path that the endpoint has, as Django gives it to patterns."""
    return re.sub(r"\{[^}]*\}", "~", endpoint.path).removeprefix("/")


ENDPOINTS = table_with(extensions())
