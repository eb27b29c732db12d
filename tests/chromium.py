"""A headless Chromium, driven over its own DevTools protocol through the `websockets` package.

    with Chromium(tmp_path) as browser:
        page = browser.page()
        page.open(f"{server.url}/admin/")
        page.click("input[type=submit]", loads=True)

A page notes everything that went wrong on it: messages of the console, exceptions, and requests that failed.
"""

import base64
import contextlib
import itertools
import json
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium")
WAIT_SECONDS = 20.0
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars --remote-debugging-port=0"
).split()


class Chromium:
    """One browser process with a profile of its own in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._profile = folder / "profile"
        self._numbers = itertools.count(1)
        self._socket: ClientConnection | None = None
        self._pages: dict[str, Page] = {}

    def __enter__(self) -> "Chromium":
        assert CHROMIUM, "chromium is missing: make services installs it"
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        giving_up = threading.Timer(WAIT_SECONDS, self._process.kill)
        giving_up.start()
        assert self._process.stderr is not None
        self._drain = threading.Thread(target=self._process.stderr.read)  # a full pipe would stop the browser
        said = []
        for line in self._process.stderr:
            said.append(line)
            if line.startswith("DevTools listening on "):
                giving_up.cancel()
                self._socket = connect(line.split()[-1], max_size=None, open_timeout=WAIT_SECONDS)
                self._drain.start()
                return self
        raise AssertionError(f"Chromium did not start:\n{''.join(said)}")

    def __exit__(self, *exc_info: object) -> None:
        with contextlib.suppress(Exception):
            self.call("Browser.close")
        if self._socket is not None:
            self._socket.close()
        try:
            self._process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._drain.join()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def page(self, *, width: int = 1440, height: int = 900) -> "Page":
        """Open a page."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.resize(width, height)
        return page

    def call(self, method: str, session: str | None = None, **parameters: object) -> dict[str, Any]:
        """Call a method of the protocol and return its result; events that come meanwhile go to their pages."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        assert self._socket is not None
        self._socket.send(json.dumps(message))
        answer = self.read_until(lambda each: each.get("id") == number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return dict(answer["result"])

    def read_until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Read messages until there is one like this, and return it."""
        assert self._socket is not None
        while True:
            message = json.loads(self._socket.recv(timeout=WAIT_SECONDS))
            if message.get("sessionId") in self._pages and "method" in message:
                self._pages[message["sessionId"]].heard(message["method"], message["params"])
            if wanted(message):
                return dict(message)


class Page:
    """A page of a browser; `problems` is what went wrong on it."""

    def __init__(self, browser: Chromium, session: str) -> None:
        self._browser = browser
        self._session = session
        self.problems: list[str] = []
        self.requests: dict[str, str] = {}
        self._loads = 0

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Call a method of the protocol."""
        return self._browser.call(method, self._session, **parameters)

    def heard(self, method: str, told: dict[str, Any]) -> None:
        """Note what went wrong, and that a page has loaded."""
        match method:
            case "Runtime.exceptionThrown":
                self.problems.append(f"exception: {told['exceptionDetails']}")
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning"):
                self.problems.append(f"console: {told['args']}")
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                self.problems.append(f"log: {told['entry']}")
            case "Page.loadEventFired":
                self._loads += 1
            case "Network.requestWillBeSent":
                self.requests[told["requestId"]] = told["request"]["url"]
            case "Network.loadingFailed" if not told.get("canceled"):
                self.problems.append(f"request: {self.requests.get(told['requestId'])}: {told['errorText']}")
            case "Network.responseReceived" if told["response"]["status"] >= 400:
                self.problems.append(f"status {told['response']['status']}: {told['response']['url']}")

    def resize(self, width: int, height: int) -> None:
        """Change the size of the window."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def dark(self, on: bool = True) -> None:
        """Prefer dark colours, as a system does."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if on else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.run("Promise.all(document.getAnimations().map(animation => animation.finished)).then(() => true)")

    def open(self, url: str) -> None:
        """Go to a page and wait until it has loaded."""
        self._loaded(lambda: self.call("Page.navigate", url=url))

    def run(self, script: str) -> Any:
        """Return what an expression of JavaScript gives."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """Return the text of an element as it is seen."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def click(self, selector: str, *, loads: bool = False) -> None:
        """Click in the middle of an element with the mouse; `loads` waits for the page behind it."""
        where = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
            "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect(); "
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )

        def press() -> None:
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, x=where[0], y=where[1], button="left", clickCount=1)

        if loads:
            self._loaded(press)
        else:
            press()

    def write(self, selector: str, text: str) -> None:
        """Put the cursor into a field and write."""
        self.click(selector)
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Save what is seen, or the whole page, as PNG."""
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._area(whole))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def _area(self, whole: bool) -> dict[str, object]:
        if not whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 6_000), "scale": 1}}

    def _loaded(self, act: Callable[[], object]) -> None:
        """Act, and wait for the event that says a page has loaded, whenever it comes."""
        loads = self._loads
        act()
        if self._loads == loads:
            self._browser.read_until(lambda _: self._loads > loads)
