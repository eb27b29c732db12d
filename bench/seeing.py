"""What an image costs the server beside a text: in the turn that brings it, and in those that go on with it."""

import io
import json
import os
from collections.abc import Iterator
from http.client import HTTPConnection
from statistics import median

from PIL import Image

from bench.report import Result, ratio
from bench.servers import OURS, Bench, BenchServer
from tests.kit.pictures import data_url

SIDE = 1024  # pixels of the image, a PNG
TURNS = 20  # of a conversation, behind the first one
ROUNDS = 7  # conversations of each kind, one after the other


def seeing(bench: Bench) -> Iterator[Result]:
    """Conversations whose first message has an image, beside the same without it."""
    first: dict[bool, list[float]] = {True: [], False: []}
    later: dict[bool, list[float]] = {True: [], False: []}
    with bench.fresh_server(OURS, "seeing", engine_options=json.dumps({"sees": True})) as server:
        for number in bench.report.rounds(ROUNDS, warm_up=True):
            for shows in (True, False):
                began, went_on = _conversation(server, shows=shows)
                if number:
                    first[shows].append(began)
                    later[shows].append(went_on)
    yield Result(
        what=f"CPU of the turn that brings an image, PNG of {SIDE}² pixels (information)",
        measured=median(first[True]) * 1e3,
        unit="ms",
        details={"of a text, ms": median(first[False]) * 1e3},
    )
    yield Result(
        what=f"CPU of {TURNS} later turns of it / of a text's",
        measured=ratio(later[True], later[False]),
        target=1.1,
        details={"image ms": median(later[True]) / TURNS * 1e3, "text ms": median(later[False]) / TURNS * 1e3},
    )


def _conversation(server: BenchServer, *, shows: bool) -> tuple[float, float]:
    """Return the CPU seconds of the server's process: of the first turn, and of all others."""
    parts = [{"type": "input_text", "text": "short"}]
    if shows:
        parts.append({"type": "input_image", "image_url": data_url(_noise()), "detail": "high"})
    connection = HTTPConnection("127.0.0.1", server.port)
    before = server.cpu_seconds()
    response = _posted(connection, {"input": [{"role": "user", "content": parts}]})
    began = server.cpu_seconds()
    for _ in range(TURNS):
        response = _posted(connection, {"input": "short", "previous_response_id": response})
    connection.close()
    return began - before, server.cpu_seconds() - began


def _noise() -> bytes:
    """Return an image of 3 MB, another one each time: one that is known is not read again."""
    target = io.BytesIO()
    Image.frombytes("RGB", (SIDE, SIDE), os.urandom(SIDE * SIDE * 3)).save(target, "PNG", compress_level=1)
    return target.getvalue()


def _posted(connection: HTTPConnection, body: dict[str, object]) -> str:
    connection.request("POST", "/v1/responses", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    response = json.loads(answer.read())
    assert answer.status == 200, response
    return str(response["id"])
