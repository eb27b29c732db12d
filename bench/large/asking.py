"""Requests to a server, one after the other on some connections, and how long each took."""

import http.client
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle

from tests.kit.server import Server

Request = tuple[str, str, str, Mapping[str, object] | None]  # a name, a method, a path, and a body
JSON = {"content-type": "application/json"}


@dataclass(slots=True)
class Taken:
    """Times in milliseconds, by the name of the request."""

    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def slowest(self) -> float:
        return max(max(times) for times in self.times.values())

    @property
    def count(self) -> int:
        """How many requests there were."""
        return sum(map(len, self.times.values()))

    def quantile(self, share: float) -> float:
        """The time within which this share of all requests was answered."""
        times = sorted(each for times in self.times.values() for each in times)
        return times[min(len(times) - 1, int(share * len(times)))]


class Asker:
    """One connection, which is kept."""

    def __init__(self, server: Server) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)

    def ask(self, request: Request) -> tuple[float, bytes]:
        """Ask, and return how long the whole answer took, in milliseconds, and the answer, which is a 200."""
        _, method, path, body = request
        content = None if body is None else json.dumps(body).encode()
        began = time.perf_counter()
        self._connection.request(method, path, content, JSON if content else {})
        answer = self._connection.getresponse()
        said = answer.read()
        taken = (time.perf_counter() - began) * 1e3
        assert answer.status == 200, (path, answer.status, said[:500])
        return taken, said

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()


def ask_all(server: Server, requests: Sequence[Request]) -> Taken:
    """Ask one after the other."""
    taken, asker = Taken(), Asker(server)
    for request in requests:
        taken.times[request[0]].append(asker.ask(request)[0])
    asker.close()
    return taken


@contextmanager
def asking(
    server: Server, requests: Callable[[int], Sequence[Request]], *, clients: int, pause: float
) -> Iterator[Taken]:
    """Ask over and over while the block runs, each client what `requests(number)` says, `pause` seconds apart."""
    taken, over = Taken(), threading.Event()
    broken: list[BaseException] = []

    def work(number: int) -> None:
        asker = Asker(server)
        try:
            for request in cycle(requests(number)):
                if over.wait(pause):
                    break
                taken.times[request[0]].append(asker.ask(request)[0])
        except BaseException as error:
            broken.append(error)
            raise
        finally:
            asker.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield taken
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not broken, broken
