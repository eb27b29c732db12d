"""A small cluster answers over every transport, through nginx.

Only this finds a header, a limit or an upgrade on which nginx, the workers, Redis and PostgreSQL do not agree.
"""

from pathlib import Path

import httpx

from tests.kit.background import begin, until
from tests.kit.clients import Socket, text_of
from tests.kit.raw_streams import RawStream
from tests.system.cluster.cluster import Cluster


async def test_a_cluster_answers_over_every_transport(tmp_path: Path) -> None:
    with Cluster(tmp_path, tokens_per_second=1000, engines=1, workers=2) as cluster:
        server = cluster.server
        async with httpx.AsyncClient(base_url=server.base_url, timeout=30, verify=False) as http:
            answer = await http.post("/responses", json={"input": "count to 5"})
            assert text_of(answer.json()) == "1 2 3 4 5"
            assert answer.headers["server"].startswith("nginx")
            began = await begin(http, "count to 5")
            assert text_of(await until(http, began["id"], "completed")) == "1 2 3 4 5"
            stream = await RawStream.create(server, input="count to 5")
            assert text_of((await stream.rest())[-1]["response"]) == "1 2 3 4 5"
            async with await Socket.open(server.ws_url) as socket:
                first = await socket.ask("Hello")
                assert "user message 2" in text_of(await socket.ask("Hello", previous_response_id=first["id"]))
            login = await http.get(f"{server.url}/admin/login/")
            assert login.status_code == 200
            too_large = await http.post("/responses", content=b"x" * (34 * 1024 * 1024))
            assert too_large.json()["error"]["code"] == "request_too_large"
