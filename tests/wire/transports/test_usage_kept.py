"""The law of usage: what is kept adds up to what the answers said, to the token; also behind kill -9.

`test_organization_usage` uses all APIs.
"""

from pathlib import Path

from tests.kit.background import begin, new_server, until
from tests.kit.batches import batch_of, ended, line, output_of
from tests.kit.clients import http_client, server_sent
from tests.kit.raw_streams import RawStream
from tests.kit.scripts import gate, release
from tests.kit.sdk import sdk_of
from tests.kit.server import Server
from tests.kit.stored import stored
from tests.kit.used import Said
from tests.kit.waiting import eventually

KEPT = "SELECT source, batch, COUNT(*), SUM(input_tokens), SUM(cached_tokens), SUM(output_tokens)"
TERMINAL = ("response.completed", "response.failed", "response.incomplete")


def kept(server: Server) -> dict[tuple[str, bool], list[int]]:
    """Return what the database has, as `Said` has it."""
    rows = stored(server, f"{KEPT} FROM responses_app_usage GROUP BY source, batch")
    return {(source, bool(batch)): list(map(int, sums)) for source, batch, *sums in rows}


async def test_it_adds_up_whatever_becomes_of_a_response(tmp_path: Path) -> None:
    said = Said()
    with new_server(tmp_path, model_name="demo") as server:
        async with http_client(server) as http:
            for fields in ({}, {"store": False}, {"input": "[weather]"}, {"max_output_tokens": 16, "input": "[long]"}):
                said.add((await http.post("/responses", json={"input": "Hello", **fields})).json())
            first = (await http.post("/responses", json={"input": "Hello again"})).json()
            more = {"input": "More", "previous_response_id": first["id"]}
            for answer in (first, (await http.post("/responses", json=more)).json()):
                said.add(answer)
                assert (await http.delete(f"/responses/{answer['id']}")).is_success
            for fields in ({"input": "Hello"}, {"input": "[break]"}, {"input": "[break]", "store": False}):
                async with http.stream("POST", "/responses", json={"stream": True, **fields}) as stream:
                    [last] = [each async for _, each in server_sent(stream) if is_terminal(each)]
                said.add(last["response"])
            accepted = await begin(http, "Hello")
            said.add(await until(http, accepted["id"], "completed"))
            said.add((await http.post("/responses/compact", json={"input": "Hello", "model": "demo"})).json())
            # What is refused has used nothing.
            assert (await http.post("/responses", json={"input": "Hello", "model": "unknown"})).is_error
        with sdk_of(server) as client:
            batch = ended(client, batch_of(client, [line(str(number), input="Hello") for number in range(3)]))
            for each in output_of(client, batch.output_file_id).values():
                said.add(each["response"]["body"], batch=True)
        server.stop()  # what waits to be written is written
        assert kept(server) == dict(said.sums)
        server.start()
        server.stop()
        assert kept(server) == dict(said.sums)


def test_embeddings_add_up(tmp_path: Path) -> None:
    said = Said()
    with Server(tmp_path) as server:
        for given in ("one", ["one", "two words"], [[1, 2, 3]]):
            said.add(server.post("/embeddings", input=given).json(), "embeddings")
        assert server.post("/embeddings", input="one", model="unknown").is_error
        with sdk_of(server) as client:
            lines = [line(str(number), "/v1/embeddings", model="hashing-256", input="Hello") for number in range(3)]
            batch = ended(client, batch_of(client, lines, "/v1/embeddings"))
            for each in output_of(client, batch.output_file_id).values():
                said.add(each["response"]["body"], "embeddings", batch=True)
        assert server.stop() == 0
        assert kept(server) == dict(said.sums)
    assert sum(said.sums["embeddings", True]) > 3


async def test_what_a_killed_worker_has_begun_counts_once(tmp_path: Path) -> None:
    said = Said()
    with new_server(tmp_path, worker_lease_seconds=2) as server:
        stream = await RawStream.create(server, input=gate("b0"), background=True)
        events = await stream.until("response.output_text.delta")
        background = events[0]["response"]["id"]
        foreground = await RawStream.create(server, input="[hang]")
        cut = (await foreground.until("response.output_text.delta"))[0]["response"]["id"]
        async with http_client(server) as http:
            said.add((await http.post("/responses", json={"input": "Hello"})).json())
        server.kill()
        stream.kill()
        foreground.kill()
        assert kept(server) == dict(said.sums)
        release(server, "b0")
        server.start()
        server.kill()  # once more, before or behind it has taken over
        server.start()
        async with http_client(server) as http:
            said.add(await until(http, background, "completed"))
            failed = await until(http, cut, "failed")
        assert failed["usage"] is None
        server.kill()
        server.start()
        server.stop()
        assert kept(server) == dict(said.sums)


async def test_a_stop_of_a_run_counts_what_it_has_used(tmp_path: Path) -> None:
    said = Said()
    with new_server(tmp_path, shutdown_grace_seconds=0.1) as server:
        stream = await RawStream.create(server, input="[hang]", store=False)
        await stream.until("response.output_text.delta")
        server.stop()
        said.add((await stream.rest())[-1]["response"])
        assert said.sums["responses", False][3] > 0
        assert kept(server) == dict(said.sums)


async def test_a_response_that_is_deleted_while_it_runs_has_used_its_tokens(tmp_path: Path) -> None:
    with new_server(tmp_path) as server:
        stream = await RawStream.create(server, input="[hang]")
        begun = (await stream.until("response.output_text.delta"))[0]["response"]["id"]
        async with http_client(server) as http:
            assert (await http.delete(f"/responses/{begun}")).is_success
        await eventually(lambda: bool(kept(server)))
        stream.kill()
        [(key, (requests, given, _, output))] = kept(server).items()
        assert (key, requests) == (("responses", False), 1)
        assert given > 0
        assert output > 0


def is_terminal(event: object) -> bool:
    """Whether an event of a stream is its last."""
    return isinstance(event, dict) and event["type"] in TERMINAL
