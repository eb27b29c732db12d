"""The processes of a cluster that the other tests do not start: engines, and nginx before the workers."""

import os
import shutil
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from string import Template

import httpx
import pytest

from tests.kit.server import ROOT, START_SECONDS, clean_environ
from tests.kit.waiting import looks

TEMPLATE = ROOT / "deploy" / "nginx" / "respsite.conf.template"
STOP_SECONDS = 10.0
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")
CONF = """
{user}
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/respsite.conf;
}}
"""


class Program(ABC):
    """A program of the cluster. It can be killed, stalled and started again, on the same port."""

    def __init__(self, name: str, folder: Path, port: int) -> None:
        self.name = name
        self.port = port
        self.log = folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it listens, without a path."""
        return f"http://127.0.0.1:{self.port}"

    @abstractmethod
    def command(self) -> list[str]:
        """Return what starts it."""

    def begin(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), cwd=ROOT, env=clean_environ(), stdout=log, stderr=log, start_new_session=True
            )

    def start(self) -> None:
        """Start it, unless it has begun to, and wait until it answers."""
        if self.process is None or self.process.poll() is not None:
            self.begin()
        assert self.process is not None
        for _ in looks(START_SECONDS):
            if self._answers():
                return
            if self.process.poll() is not None:
                break
        self.stop()
        raise RuntimeError(f"{self.name} did not start:\n{self.log.read_text()[-2000:]}")

    def _answers(self) -> bool:
        try:
            httpx.get(f"{self.url}/health", timeout=5, verify=False)
        except httpx.TransportError:
            return False
        return True

    def kill(self) -> None:
        """End it without warning."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Tell it to end; do nothing if it does not run."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class EngineServer(Program):
    """The demo engine behind vLLM's wire."""

    def __init__(self, name: str, folder: Path, port: int, *, tokens_per_second: float) -> None:
        super().__init__(name, folder, port)
        self._pace = tokens_per_second

    def command(self) -> list[str]:
        pace = ("--tokens-per-second", str(self._pace))
        return [sys.executable, "-m", "engine.backends.demo.server", "--port", str(self.port), *pace]


class Nginx(Program):
    """nginx with the file that the deployment page shows."""

    def __init__(self, folder: Path, port: int, *, upstreams: Sequence[str]) -> None:
        super().__init__("nginx", folder, port)
        if NGINX is None:
            pytest.skip("nginx is not installed: make services")
        self._folder = folder / "nginx"
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "respsite.conf").write_text(site(listen=f"127.0.0.1:{port}", upstreams=upstreams))
        user = "user root;" if os.geteuid() == 0 else ""  # another one may not enter a test's folder
        (self._folder / "nginx.conf").write_text(CONF.format(folder=self._folder, user=user))

    def command(self) -> list[str]:
        return [str(NGINX), "-p", str(self._folder), "-e", "stderr", "-c", str(self._folder / "nginx.conf")]


def site(*, listen: str, upstreams: Sequence[str], names: str = "localhost 127.0.0.1", tls: str = "") -> str:
    """Fill the template in, as `envsubst` would."""
    values = {
        "RESPSITE_LISTEN": listen,
        "RESPSITE_NAMES": names,
        "RESPSITE_TLS": tls,
        "RESPSITE_UPSTREAM": " ".join(f"server {upstream};" for upstream in upstreams),
    }
    return Template(TEMPLATE.read_text()).safe_substitute(values)
