"""`CoreHost`: the process that starts vLLM's engine core and leases places at it to those who serve.

It serves nothing and carries no token: front ends and the core talk to each other (`shared_core`). Place 0 is the
host's own. There it hears how the core introduces itself, and from there it has the core abort what a front end that is
gone had running. vLLM would let that run to its end, for nobody.

The places are fixed when the core starts, and are used again. A place whose front end is gone costs nothing but what
the core had still sent there, which the next one at that place takes.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from engine.backends.vllm import config as vllm_config
from engine.backends.vllm.config import FrontEnd
from engine.backends.vllm.core import CORE_STOP_SECONDS
from engine.backends.vllm.shared_core import BEGAN, MAX_LINE_BYTES, Lease, refusal
from engine.errors import EngineConfigurationError

logger = logging.getLogger("respsite.engine")

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
