"""`SharedCore`: an engine core that another process has started, and a place at it that is leased to this one.

Several processes talk to it over ZMQ. That is how vLLM's own front ends (`--api-server-count`) share one: no HTTP in
between, and each of them does the work of its own streams. `CoreHost` is the process that has started it.

vLLM's client waits until the core introduces itself, and the core does that once for each place: who takes a place over
would wait for ever. So we introduce it ourselves, to every client, with the words that the host has kept:

    1. the client is built on an address of our own, where a socket with the core's identity says them
    2. that socket is closed, and the client listens on the place's address as well
    3. the core, which tries that address ten times a second, connects; its identity now means the core

What the core had sent to the one who was there before comes first. Those are outputs of requests that are not known
here, which vLLM's client passes over.

vLLM's engine core knows its front ends as numbered places, each with two ZMQ addresses. Which process has which place
is agreed upon over a Unix socket (`CoreHost` listens, `SharedCore` connects), in lines:

    host → front end    one JSON object: a `Lease`, as soon as the core is loaded, or {"refused": why}
    front end → host    +ID    the core is about to get this request
                        -ID    it is over

The connection is the lease. The kernel closes it whatever ends either side. Where a front end's ends, the host frees
its place and has the core abort what it had running; where the host's ends, the core is gone.

`CoreHost`: the process that starts vLLM's engine core and leases places at it to those who serve.

It serves nothing and carries no token: front ends and the core talk to each other. Place 0 is the
host's own. There it hears how the core introduces itself, and from there it has the core abort what a front end that is
gone had running. vLLM would let that run to its end, for nobody.

The places are fixed when the core starts, and are used again. A place whose front end is gone costs nothing but what
the core had still sent there, which the next one at that place takes.
"""

import asyncio
import base64
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

from engine.backends.vllm import config as vllm_config
from engine.backends.vllm.config import FrontEnd
from engine.backends.vllm.core import CORE_STOP_SECONDS, BaseCore
from engine.errors import EngineConfigurationError, EngineError, EngineUnavailable
from engine.threads import in_thread

logger = logging.getLogger("respsite.engine")

MAX_LINE_BYTES = 64 * 1024  # a lease has 1 KiB, a request's id 80 bytes
BEGAN, ENDED = b"+", b"-"  # how the two lines of a front end begin
CONNECT_SECONDS = 0.5  # between two looks for a host that is not there (yet)
ANSWER_SECONDS = 1.0  # the core answers within this, or it has not connected yet, and is asked again
ANSWERS = 30  # how often it is asked, which makes 30 s in all
MAX_UNREAD_BYTES = 1024 * 1024  # a host that stands still for so long is told no more


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A place at an engine core."""

    place: int  # from 1 on; 0 is the host's own
    places: int  # that there are, with the host's
    input_address: str  # of ZMQ, where the core gets requests
    output_address: str  # where it sends what it has sampled
    greeting: bytes  # how it introduces itself
    version: str  # vLLM's
    pid: int  # the host's

    def encode(self) -> bytes:
        """Return it as a line."""
        fields: dict[str, Any] = asdict(self) | {"greeting": base64.b64encode(self.greeting).decode()}
        return json.dumps(fields).encode() + b"\n"


def refusal(why: str) -> bytes:
    """Return the line of a host that gives no place."""
    return json.dumps({"refused": why}).encode() + b"\n"


def decode_lease(line: bytes) -> Lease:
    """Read what the host has answered. Raises `EngineUnavailable` where that is not a lease."""
    if not line.endswith(b"\n"):
        raise EngineUnavailable("The engine core ended before it was loaded.")
    fields = json.loads(line)
    if "refused" in fields:
        raise EngineUnavailable(f"The engine core takes no more workers: {fields['refused']}.")
    return Lease(**fields | {"greeting": base64.b64decode(fields["greeting"])})


class SharedCore(BaseCore):
    """Attaches to the engine core behind the Unix socket `path`."""

    is_shared = True

    def __init__(self, model: str, options: Mapping[str, object], path: str) -> None:
        super().__init__(model, options)
        self._path = path
        self._place: _Place | None = None  # what is leased now; None before, and once it was given back
        # The thread that builds `_llm`, kept so that `_let_go` can wait for it.
        self._building: asyncio.Future[Any] | None = None
        self._llm: Any = None
        # The folder of our own address and of the tokenizer.
        self._folder = TemporaryDirectory(prefix="respsite-front-", ignore_cleanup_errors=True)

    async def load(self) -> Any:
        """Wait until there is a core, and attach to it."""
        await in_thread(vllm_config.import_vllm)
        place = await self._take_place()
        try:
            # `place.lease` is read on the thread. `shield`: it cannot be cancelled, and what it builds has to be
            # disposed of.
            self._building = in_thread(lambda: self._build(place.lease))
            self._llm = llm = await asyncio.shield(self._building)
            await _wait_for_the_core(llm, place)
        except BaseException as error:  # of being cancelled, too: a place that is not given back is lost to others
            if not self._closed:  # `aclose()` does it then
                await self._let_go()
            if isinstance(error, Exception) and not isinstance(error, EngineError):
                raise EngineUnavailable(
                    f"The engine core could not be attached to: {vllm_config.reason(error)}."
                ) from error
            raise
        # Closed while it attached: `aclose()` has let go of it already.
        self._require_open()
        # The host hears of a request before the core gets it: else one could run that nobody would ever abort.
        plain = llm.engine_core.add_request_async
        llm.engine_core.add_request_async = lambda request: place.begin(plain, request)
        return llm

    async def aclose(self) -> None:
        """Give the place back; the host has the core abort what runs."""
        self._closed = True
        await self._let_go()
        self._folder.cleanup()

    async def dispose(self, llm: Any) -> None:
        await super().dispose(llm)
        if self._place is not None:
            self._place.close()  # not before the sockets are closed: the next one has the same addresses
            self._place = None

    def ended(self, request_id: str) -> None:
        if self._place is not None:
            self._place.end(request_id)

    def described(self, llm: Any) -> str:
        assert self._place is not None
        return f"in a core of process {self._place.lease.pid} that workers share, {self.version(llm)}"

    @property
    def started_by(self) -> int | None:
        return None if self._place is None else self._place.lease.pid

    async def _let_go(self) -> None:
        # Taken out before anything is awaited: a second call finds nothing.
        building, self._building = self._building, None
        if building is not None:
            with suppress(Exception):  # it was not built, or not in time: then there is nothing to dispose of
                async with asyncio.timeout(CORE_STOP_SECONDS):
                    self._llm = await asyncio.shield(building)
        llm, self._llm = self._llm, None
        if llm is not None:
            await self.dispose(llm)
        if self._place is not None:
            self._place.close()
            self._place = None

    async def _take_place(self) -> "_Place":
        """Return a place; wait for as long as there is no host, or it loads the model."""
        is_logged = False
        while True:
            self._require_open()
            try:
                reader, writer = await asyncio.open_unix_connection(self._path, limit=MAX_LINE_BYTES)
            except (FileNotFoundError, ConnectionRefusedError):
                if not is_logged:
                    logger.info("waiting for the engine core")
                is_logged = True
                await asyncio.sleep(CONNECT_SECONDS)
                continue
            except OSError as error:
                raise EngineUnavailable(f"There is no way to the engine core at {self._path}: {error}.") from error
            try:
                lease = decode_lease(await reader.readline())
                _check_version(lease)
            except OSError as error:  # the kernel resets those whom the host has not accepted yet, as it loads
                writer.close()
                raise EngineUnavailable("The engine core ended before it was loaded.") from error
            # Being cancelled too: the host would keep the place for a connection that nobody reads.
            except BaseException:
                writer.close()
                raise
            self._place = _Place(lease, reader, writer, lost=self.lost)
            return self._place

    def _build(self, lease: Lease) -> Any:
        front_end = FrontEnd(lease.place, lease.places)
        folder = Path(self._folder.name)
        config, engine_args = vllm_config.configure(self._model, self._options, folder, front_end)
        try:
            return _attached(config, engine_args, lease, f"ipc://{folder}/greeting")
        except (AttributeError, ImportError, TypeError) as error:
            raise vllm_config.not_shared(error) from error


class _Place:
    """A lease that holds for as long as the connection; `lost` is called when the host ends it."""

    def __init__(
        self, lease: Lease, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, lost: Callable[[], None]
    ) -> None:
        self.lease = lease
        self.is_lost = False  # the host has closed the connection: nothing is told any more
        self._writer = writer
        self._lost = lost  # called once, when the connection ends
        self._running: dict[str, bytes] = {}  # by the ids of requests: what vLLM calls them
        self._watching = asyncio.create_task(self._watch(reader), name="watch the engine core")

    async def begin(self, add: Callable[[Any], Awaitable[None]], request: Any) -> None:
        """Give the core a request; the host has heard of it before."""
        name = request.request_id.encode()
        # Before the line is written, and that before the core gets it: `end` may come at any time from then on.
        self._running[request.external_req_id] = name
        self._tell(BEGAN, name)
        await add(request)

    def end(self, request_id: str) -> None:
        """A request is over."""
        # Also called for requests that never reached the core: those are not in it.
        if name := self._running.pop(request_id, None):
            self._tell(ENDED, name)

    def close(self) -> None:
        """Give the place back."""
        self._watching.cancel()
        self._writer.close()

    def _tell(self, what: bytes, name: bytes) -> None:
        # A host that reads nothing must not fill our memory. What it is not told, it cannot have aborted later.
        if not self.is_lost and self._writer.transport.get_write_buffer_size() < MAX_UNREAD_BYTES:
            self._writer.write(b"%b%b\n" % (what, name))

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            # Cancelled by `close`: then it is we who end it, and nobody is told.
            await reader.read(1)  # the host says no more: this is its end
        self.is_lost = True
        self._lost()


def _attached(config: Any, engine_args: Any, lease: Lease, own_address: str) -> Any:
    """Return an AsyncLLM at a place of a core that runs already; see the steps above."""
    import zmq
    from vllm.v1.engine.async_llm import AsyncLLM

    # Both are closed at the end of this block: the identity must be free for the core before the client listens on.
    with zmq.Context() as context, context.socket(zmq.DEALER) as greeter:
        greeter.setsockopt(zmq.IDENTITY, (0).to_bytes(2, "little"))  # vLLM's name for the one core that there is
        greeter.setsockopt(zmq.LINGER, 0)
        # Connected before the client listens; ZMQ keeps the message until it does.
        greeter.connect(own_address)
        greeter.send(lease.greeting)
        llm = AsyncLLM.from_vllm_config(
            config,
            disable_log_stats=engine_args.disable_log_stats,
            enable_log_requests=engine_args.enable_log_requests,
            client_addresses={"input_address": own_address, "output_address": lease.output_address},
            client_count=lease.places,
            client_index=lease.place,
        )
    socket = llm.engine_core.input_socket
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # the core takes its identity over, should the greeter linger
    socket.bind(lease.input_address)
    return llm


async def _wait_for_the_core(llm: Any, place: _Place) -> None:
    """Return once the core has answered. What is asked before it has connected is lost, so it is asked again.

    (It is the one question that vLLM's client asks of itself, before its first request.)
    """
    for _ in range(ANSWERS):
        if place.is_lost:
            break
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await llm.get_supported_tasks()
                # Any answer means that it is connected.
                return
    raise EngineUnavailable("The engine core does not answer.")


def _check_version(lease: Lease) -> None:
    import vllm

    if lease.version != vllm.__version__:
        raise EngineConfigurationError(
            f"The engine core runs vLLM {lease.version} and this worker has {vllm.__version__}: start the server anew, "
            "so that the core is of the new version too."
        )


MAX_PATH_BYTES = 107  # of a Unix socket's address: what `sun_path` of Linux takes, less the final zero byte
ABORT_AGAIN_SECONDS = 1.0  # the core may read what a front end sent last behind our first word
WAITING = 128  # front ends that may have connected while the core loads


class CoreHost:
    """One engine core, and `places` front ends at once. `path` is where they ask for a place."""

    def __init__(self, *, model: str, options: Mapping[str, object], path: str, places: int) -> None:
        self._model = model
        self._options = options
        self._path = Path(path)
        self._free = set(range(1, places + 1))  # places from 1 on; the host has place 0 itself
        self._stack = ExitStack()  # what is undone in `close`, the last one first
        self._listener = self._listen()
        self._folder = Path(mkdtemp(dir=self._path.parent, prefix="core-"))  # goes with the folder around it
        self._addresses = [
            (f"ipc://{self._folder}/{place}.in", f"ipc://{self._folder}/{place}.out") for place in range(places + 1)
        ]
        # The last address is the longest: places have the most digits there, and `.out` is longer than `.in`.
        if len(os.fsencode(self._addresses[-1][1])) - len("ipc://") > MAX_PATH_BYTES:
            raise EngineConfigurationError(
                f"{self._folder} is too long for the addresses of sockets: set TMPDIR to a shorter folder."
            )
        self._processes: list[Any] = []  # vLLM's: the core's, one for each if it has several
        self._greeting = b""  # what the core said when it introduced itself; each front end is given it with its lease
        self._identity = b""  # the core's, by which a ROUTER socket addresses it
        self._requests: Any = None  # a ZMQ socket, on which the core gets what we ask
        self._answers: Any = None  # and one where it sends what is for nobody else
        self._aborts: set[asyncio.TimerHandle] = set()  # second attempts to abort that are still to come
        self._leases: set[asyncio.Task[None]] = set()  # one task for each front end that is connected

    def start(self) -> None:
        """Load the model. Blocks for a minute or more. Raises `EngineConfigurationError`, `EngineUnavailable`."""
        vllm_config.import_vllm()
        places = len(self._addresses)
        config, engine_args = vllm_config.configure(
            self._model, self._options, self._folder / "vocabulary", FrontEnd(-1, places)
        )
        if config.parallel_config.data_parallel_size > 1:
            raise EngineConfigurationError(
                "With WORKERS above 1 there is one engine core, so ENGINE_OPTIONS cannot have data_parallel_size."
            )
        vllm_config.spawn_processes()
        try:
            self._launch(config, engine_args)
        # Names of vLLM's that have gone or changed, not a model that does not load.
        except (AttributeError, ImportError, TypeError) as error:
            raise vllm_config.not_shared(error) from error
        except Exception as error:
            raise vllm_config.not_loaded(error) from error

    async def serve(self) -> None:
        """Lease places until the core has ended."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        # A process's sentinel is readable once it has ended.
        for process in self._processes:
            loop.add_reader(process.sentinel, ended.set)
        # ZMQ's file descriptor tells only of changes, so what has come before has to be taken once by hand, below.
        loop.add_reader(self._answers.FD, self._take_answers)
        server = await asyncio.start_unix_server(self._take_in, sock=self._listener, limit=MAX_LINE_BYTES)
        self._take_answers()
        try:
            await ended.wait()
            logger.error("the engine core ended, with status %s", self._processes[0].exitcode)
        # The processes themselves are stopped by `close`.
        finally:
            server.close()
            for process in self._processes:
                loop.remove_reader(process.sentinel)
            loop.remove_reader(self._answers.FD)
            for abort in self._aborts:
                abort.cancel()
            for lease in self._leases:
                lease.cancel()

    def close(self) -> None:
        """Stop the core: gently for `CORE_STOP_SECONDS`, then with a kill."""
        self._listener.close()
        # In this order: the core can end only once whatever it wants to send is taken.
        self._take_what_is_left()
        self._stack.close()

    def _take_what_is_left(self) -> None:
        """Be the front end of all places: a core that has something for one that is not there would wait for it."""
        if not self._processes:
            return
        import zmq
        from vllm.utils.network_utils import make_zmq_socket

        context = self._requests.context
        for own_input, own_output in self._addresses[1:]:
            self._stack.enter_context(make_zmq_socket(context, own_input, zmq.ROUTER, bind=True))
            self._stack.enter_context(make_zmq_socket(context, own_output, zmq.PULL))

    def _listen(self) -> socket.socket:
        """Listen from the beginning on: who comes while the model loads waits. Only this user's processes may come."""
        listener = socket.socket(socket.AF_UNIX)
        if self._path.is_socket():  # left by one that was killed
            self._path.unlink()
        try:
            listener.bind(str(self._path))
            self._path.chmod(0o600)  # whatever the umask; nobody can connect before `listen`
        except OSError as error:
            listener.close()
            raise EngineConfigurationError(f"No socket can be made at {self._path}: {error}.") from error
        listener.listen(WAITING)
        return listener

    def _launch(self, config: Any, engine_args: Any) -> None:
        import zmq
        from vllm.utils.network_utils import make_zmq_socket
        from vllm.v1.engine.utils import EngineZmqAddresses, launch_core_engines
        from vllm.v1.executor import Executor

        context = self._stack.enter_context(zmq.Context())
        context.setsockopt(zmq.LINGER, 0)  # closing throws away what was not sent: nobody is there to take it
        own_input, own_output = self._addresses[0]
        self._requests = self._stack.enter_context(make_zmq_socket(context, own_input, zmq.ROUTER, bind=True))
        self._answers = self._stack.enter_context(make_zmq_socket(context, own_output, zmq.PULL))
        inputs, outputs = map(list, zip(*self._addresses, strict=True))
        addresses = EngineZmqAddresses(inputs=inputs, outputs=outputs)
        log_stats = not engine_args.disable_log_stats
        # The end of this block waits until the core is loaded; the processes are known before, so that they are stopped
        # then.
        with launch_core_engines(config, Executor.get_class(config), log_stats, addresses) as launched:
            manager = launched.engine_manager
            assert manager is not None
            self._processes = manager.processes
            self._stack.callback(manager.shutdown, timeout=CORE_STOP_SECONDS)
        # The core introduces itself once to each place; this is what it says to place 0.
        self._identity, self._greeting = self._requests.recv_multipart()

    def _take_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lease = asyncio.get_running_loop().create_task(self._lease(reader, writer), name="lease a place")
        self._leases.add(lease)
        lease.add_done_callback(self._leases.discard)

    async def _lease(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Give a front end a place for as long as it is connected."""
        import vllm

        # Between this look and the `discard` below nothing is awaited, so two never get the same place.
        if not self._free:  # a worker that is replaced may still have its place
            writer.write(refusal("all its places are taken, until one that stops has ended"))
            writer.close()
            return
        # The lowest first: the numbers that are used stay few, whatever comes and goes.
        place = min(self._free)
        self._free.discard(place)
        running: set[bytes] = set()  # what vLLM calls the requests that this front end has at the core
        try:
            own_input, own_output = self._addresses[place]
            lease = Lease(
                place=place,
                places=len(self._addresses),
                input_address=own_input,
                output_address=own_output,
                greeting=self._greeting,
                version=vllm.__version__,
                pid=os.getpid(),
            )
            writer.write(lease.encode())
            with suppress(ConnectionError, ValueError):  # it is gone; or it said what nobody understands
                # A line without its end is a front end that broke off in the middle of it.
                while (line := await reader.readline()).endswith(b"\n"):
                    note = running.add if line.startswith(BEGAN) else running.discard
                    note(line[1:-1])  # without the sign before it and the line end
        finally:
            self._free.add(place)
            self._abort(running, place)
            writer.close()

    def _abort(self, running: Iterable[bytes], place: int) -> None:
        """Have the core abort requests, twice. Those that have ended are passed over."""
        ids = [name.decode() for name in running]
        if not ids:
            return
        logger.warning("a worker at place %d is gone; what it had running is aborted: %d requests", place, len(ids))
        self._ask_to_abort(ids)
        loop = asyncio.get_running_loop()
        again: asyncio.TimerHandle = loop.call_later(ABORT_AGAIN_SECONDS, lambda: self._abort_again(again, ids))
        self._aborts.add(again)

    def _abort_again(self, timer: asyncio.TimerHandle, ids: list[str]) -> None:
        self._aborts.discard(timer)
        self._ask_to_abort(ids)

    def _ask_to_abort(self, ids: list[str]) -> None:
        from vllm.v1.engine import EngineCoreRequestType
        from vllm.v1.serial_utils import MsgpackEncoder

        # vLLM's own message, as `AsyncMPClient.abort_requests_async` sends it.
        message = (self._identity, EngineCoreRequestType.ABORT.value, *MsgpackEncoder().encode(ids))
        self._requests.send_multipart(message)

    def _take_answers(self) -> None:
        """Throw away what the core sends to place 0, such as its statistics; unread it would pile up."""
        import zmq

        with suppress(zmq.Again):
            while True:
                self._answers.recv_multipart(zmq.NOBLOCK)
