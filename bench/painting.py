"""What an image of `image_generation` costs: 2 MiB of a service on loopback, read, checked and made an item's."""

import asyncio
import time
from collections.abc import Iterator
from statistics import median

from bench.report import Result
from bench.servers import Bench, serving
from tests.contracts.tools import ToolCase
from tests.kit.image_server import ImageServer, image_tool

SIZE, CALLS = 2 * 1024 * 1024, 12
_SERVER = f"""
import base64, json, sys
from aiohttp import web
image = base64.b64encode(b"\\x89PNG\\r\\n\\x1a\\n" + bytes({SIZE})).decode()
body = json.dumps({{"data": [{{"b64_json": image}}]}}).encode()
async def made(request):
    return web.Response(body=body, content_type="application/json")
application = web.Application()
application.router.add_post("/images/generations", made)
web.run_app(application, host="127.0.0.1", port=int(sys.argv[1]), print=None)
"""


def images(bench: Bench) -> Iterator[Result]:
    """Have images made by a service in another process."""
    with serving(_SERVER) as port:
        took = asyncio.run(_made(port))
    yield Result(what="an image of 2 MiB, CPU of ours", measured=took, unit="ms")


async def _made(port: int) -> float:
    """Return the CPU time of an image, in ms."""
    tool, used = image_tool(ImageServer(f"http://127.0.0.1:{port}"), max_bytes=2 * SIZE), []
    arguments = ("image_generation.generate", '{"prompt": "a cat"}')
    case = ToolCase(tool, {"type": "image_generation"}, arguments, "", arguments)
    for _ in range(CALLS):
        began = time.process_time()
        returned = await case.call(*arguments)
        used.append(1000 * (time.process_time() - began))
        assert not returned.failed, returned.text
    await tool.aclose()
    return median(used[1:])  # the first one loads the library, and connects
