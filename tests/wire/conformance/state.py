"""Servers whose responses outlive their requests, each on a database of its own, and what is asked of them by id."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response

from tests.kit.databases import postgres_url
from tests.kit.oracle import validate_response, validate_response_items
from tests.kit.scripts import main_script
from tests.kit.sdk import PATIENCE, async_sdk_of, sdk_of
from tests.kit.server import Server, manage
from tests.kit.waiting import looks

MODEL = "test-model"
KINDS = ("sqlite-daphne", "postgres-daphne", "sqlite-uvicorn")
RUNNING = ("queued", "in_progress")
on_all_kinds = pytest.mark.parametrize("server", KINDS, indirect=True)


@pytest.fixture(name="servers", scope="module")
def started_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """Those that were needed so far, by their kinds."""
    started: dict[str, Server] = {}
    yield started
    for server in started.values():
        server.stop()
        assert "Traceback" not in server.output, server.log


@pytest.fixture(name="server", params=KINDS[:2])
def state_server(
    request: pytest.FixtureRequest, servers: dict[str, Server], tmp_path_factory: pytest.TempPathFactory
) -> Server:
    """A server that runs one background response at a time, on each database."""
    if request.param not in servers:
        database, _, kind = request.param.partition("-")
        folder = tmp_path_factory.mktemp(request.param)
        settings = {"database_url": postgres_url(folder, manage)} if database == "postgres" else {}
        servers[request.param] = Server(
            folder,
            kind=kind,
            script=main_script(folder),
            model_name=MODEL,
            background_max_running=1,
            reconnect_grace_seconds=30,
            **settings,
        ).start()
    return servers[request.param]


@pytest.fixture(name="client")
def state_client(server: Server) -> Iterator[OpenAI]:
    """An unmodified SDK."""
    with sdk_of(server) as client:
        yield client


@pytest.fixture(name="async_client")
async def async_state_client(server: Server) -> AsyncIterator[AsyncOpenAI]:
    """An unmodified SDK."""
    async with async_sdk_of(server) as client:
        yield client


def retrieved(client: OpenAI, response_id: str, **options: Any) -> Response:
    """Read a response and hold it to OpenAI's types."""
    raw = client.responses.with_raw_response.retrieve(response_id, **options)
    validate_response(json.loads(raw.text))
    return raw.parse()


def until(client: OpenAI, response_id: str, *statuses: str) -> Response:
    """Read a response until it has one of these states."""
    for _ in looks(PATIENCE):
        response = retrieved(client, response_id)
        if response.status in statuses:
            return response
        assert response.status in RUNNING, response
    raise AssertionError(response)


@contextmanager
def in_background(client: OpenAI, *inputs: str) -> Iterator[list[Response]]:
    """Create background responses; those that still run at the end are cancelled, so that others have their turn."""
    created = []
    for text in inputs:
        raw = client.responses.with_raw_response.create(model=MODEL, input=text, background=True)
        validate_response(json.loads(raw.text))
        created.append(raw.parse())
    yield created
    for response in created:
        with suppress(openai.BadRequestError):  # it has ended
            client.responses.cancel(response.id)


def asked(client: OpenAI, response_id: str, **options: Any) -> list[Any]:
    """List the first page of what a response was asked, and hold it to OpenAI's types."""
    raw = client.responses.input_items.with_raw_response.list(response_id, **options)
    validate_response_items(json.loads(raw.text))
    return list(raw.parse().data)
