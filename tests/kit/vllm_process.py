"""A server that speaks vLLM's wire, in a process of its own: it can be killed, stopped for a while, and come back.

with VllmProcess({"say": "<|channel|>final<|message|>Hi<|return|>"}) as vllm:
    vllm.switch(fault="error", fault_after=3)
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from tests.kit.fake_vllm import FakeVllm
from tests.kit.server import ROOT, clean_environ, free_port


class VllmProcess:
    """One server; after `kill()` it can be started again, on the same port."""

    def __init__(self, *script: Mapping[str, object], **switches: object) -> None:
        self.port = free_port()
        self._given = json.dumps({"script": script, "switches": switches})
        self._process: subprocess.Popen[bytes] | None = None
        self._running = 0

    @property
    def url(self) -> str:
        """Where it listens, without a path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_there(self) -> bool:
        return self._process is not None

    def __enter__(self) -> "VllmProcess":
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.kill()

    def start(self) -> "VllmProcess":
        """Start, and wait until it listens."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.vllm_process", str(self.port), self._given],
            cwd=ROOT,
            env=clean_environ(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._read_line()
        return self

    def switch(self, **switches: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(switches).encode() + b"\n")
        self._process.stdin.flush()
        self._read_line()

    def running(self) -> int:
        """Return how many generations run there."""
        self.switch()
        return self._running

    def kill(self) -> None:
        """Kill it (-9), stopped or not."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def pause(self) -> None:
        """Stop it (SIGSTOP): connections stay, and are made, and nothing comes."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def _read_line(self) -> None:
        """Read how many generations run: it says so when it has started, and when switches are changed."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "it ended"
        self._running = int(line)


async def _serve(port: int, given: dict[str, Any]) -> None:
    """Serve until the standard input ends; each of its lines changes switches."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with FakeVllm(*given["script"], port=port, **given["switches"]) as fake:
        print(0, flush=True)
        while line := await reader.readline():
            for name, value in json.loads(line).items():
                setattr(fake.switches, name, value)
            print(fake.engine.running, flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), json.loads(sys.argv[2])))
