"""The endpoints for trainers of a vLLM server that does not load a model (vLLM 0.32, `entrypoints/rl/online`)."""

from collections.abc import Mapping

from aiohttp import web

from engine.weights import Gate, PauseMode

STEPS = (
    *("init_weight_transfer_engine", "start_weight_update", "update_weights", "finish_weight_update"),
    *("update_weight_version", "collective_rpc"),
)


class TrainerDoors:
    """What a server has for trainers. `fails` are the paths that it answers with 500."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.version = "default"
        self.is_open = True  # VLLM_SERVER_DEV_MODE=1
        self.fails: set[str] = set()
        self.breaks: set[str] = set()  # steps whose connection breaks, once
        self.is_updating = False  # an update has begun and is not finished
        self.asked: list[tuple[str, Mapping[str, object]]] = []  # steps, with their bodies

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/pause", self._pause),
            web.post("/resume", self._resume),
            web.get("/weight_info", self._info),
            *(web.post(f"/{step}", self._step) for step in STEPS),
        ]

    async def _pause(self, request: web.Request) -> web.Response:
        self._check(request)
        await self.gate.close(PauseMode(request.query["mode"]))
        self.asked.append((f"pause {request.query['mode']}", {}))
        return web.json_response({"status": "paused"})

    async def _resume(self, request: web.Request) -> web.Response:
        self._check(request)
        self.gate.open()
        self.asked.append(("resume", {}))
        return web.json_response({"status": "resumed"})

    async def _info(self, request: web.Request) -> web.Response:
        self._check(request)
        return web.json_response({"weight_version": self.version})

    async def _step(self, request: web.Request) -> web.Response:
        self._check(request)
        body, step = await request.json(), request.path.removeprefix("/")
        if step in self.breaks and request.transport is not None:
            self.breaks.remove(step)
            request.transport.abort()
        self.asked.append((step, body))
        if step == "finish_weight_update" and not self.is_updating:
            raise web.HTTPInternalServerError(text='{"error": {"message": "without a matching start", "code": 500}}')
        if step in ("start_weight_update", "finish_weight_update"):
            self.is_updating = step == "start_weight_update"
        if "new_version" in body:
            self.version = body["new_version"]
        return web.json_response({"message": "done"})

    def _check(self, request: web.Request) -> None:
        if not self.is_open:
            raise web.HTTPNotFound
        if request.path.removeprefix("/") in self.fails:
            raise web.HTTPInternalServerError(text='{"error": {"message": "the trainer went away", "code": 500}}')
