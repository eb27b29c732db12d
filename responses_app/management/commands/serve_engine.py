"""`serve_engine`: the vLLM engine core that workers share. `respsite serve --workers` starts it for ENGINE=vllm."""

import asyncio
import os
import signal
import sys
import threading
import time
from typing import Any

from django.conf import settings
from django.core.management import BaseCommand, CommandError, CommandParser

from engine.backends.vllm.shared_core import CoreHost
from engine.errors import EngineConfigurationError, EngineError
from responses_app.management.processes import ENGINE_STOP_SECONDS, READY, REFUSED
from responses_app.observing.memory import forbid_core_dumps
from responses_app.settings.conf import Settings
from responses_app.settings.models import ModelSettings
from responses_app.wiring.engines import engine_options, make_engine

SPARE_PLACES = 2  # beyond those of two generations of workers, of which the older one may be stopping


class Command(BaseCommand):
    """Runs an engine core until it is told to stop, or the core ends."""

    help = "Internal: run the vLLM engine that workers share, at the socket ENGINE_CORE."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Take descriptors that the process has inherited, if a supervisor has started it."""
        parser.add_argument("--lifeline", type=int, metavar="DESCRIPTOR", help="a pipe that ends with the supervisor")
        parser.add_argument("--says", type=int, metavar="DESCRIPTOR", help="a pipe to say in that the core is there")

    def handle(self, *args: Any, **options: Any) -> None:
        """Load the model, and lease places at it."""
        own: Settings = settings.RESPSITE
        if not own.core_dumps:
            forbid_core_dumps()
        model = own.in_process
        if model is None or not own.engine_core:
            raise CommandError("An engine core needs ENGINE=vllm and ENGINE_CORE, the path of its socket.")
        # The supervisor's: a terminal's end is not for this process.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: sys.exit(0))
        if options["lifeline"] is not None:
            os.set_inheritable(options["lifeline"], False)
            threading.Thread(target=_end_with, args=(options["lifeline"],), name="lifeline", daemon=True).start()
        try:
            self._serve(own, model, options["says"])
        except EngineConfigurationError as error:
            self.stderr.write(f"the engine cannot start, so the server stops: {error}")
            sys.exit(REFUSED)
        except EngineError as error:
            self.stderr.write(f"the engine did not start: {error}")
            sys.exit(1)

    def _serve(self, own: Settings, model: ModelSettings, says: int | None) -> None:
        make_engine(model, core=own.engine_core).check()
        host = CoreHost(
            model=model.model,
            options=engine_options(model),
            path=own.engine_core,
            # While workers are replaced, two generations hold places.
            places=2 * own.workers + SPARE_PLACES,
        )
        try:
            host.start()
            if says is not None:
                os.set_inheritable(says, False)
                os.write(says, READY)
            asyncio.run(host.serve())
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)  # it ends already
            host.close()
        # `serve` returns only where the core has ended by itself.
        sys.exit(1)


def _end_with(lifeline: int) -> None:
    """Runs on a thread: ends this process and its engine core with the supervisor."""
    # It returns when the supervisor, who never writes, is gone.
    os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ENGINE_STOP_SECONDS)
    # The group has vLLM's own processes in it, which might outlive this one.
    os.killpg(os.getpgrp(), signal.SIGKILL)
