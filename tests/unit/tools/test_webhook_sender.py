"""`WebhookSender`: what hostile receivers and operators' settings make of a message; tests are counted."""

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from responses_app.kit.clock import utc
from responses_app.protocol.sealing import Sealer
from responses_app.resources.webhooks.model import WebhookEndpoint
from responses_app.resources.webhooks.sender import NOT_SEALED_HERE, TESTS_A_MINUTE, RecentTests, Sent, WebhookSender
from responses_app.resources.webhooks.settings import WebhookSettings
from responses_app.tools.network import NetworkError, hosts
from tests.kit.clock import Clock
from tests.kit.waiting import eventually
from tests.kit.web_server import answer, redirect, web_server
from tests.unit.tools.hostile_pages import drips, endless, endless_headers

HANGING = 80  # requests, more than pages are fetched at once
SECRETS = ("a secret of sixteen",)


def sender(allowed: str = "127.0.0.1", secrets: tuple[str, ...] = SECRETS) -> WebhookSender:
    settings = WebhookSettings(webhook_allowed_hosts=hosts(allowed), webhook_seconds=0.5)
    return WebhookSender(settings, Sealer(secrets, random_bytes=os.urandom))


@pytest.fixture
async def open_sender() -> AsyncIterator[WebhookSender]:
    opened = sender()
    yield opened
    await opened.aclose()


def endpoint(url: str, **fields: Any) -> WebhookEndpoint:
    _, sealed = sender().new_secret("default")
    fields = {"secret": sealed, **fields}
    return WebhookEndpoint(id="we_1", project="default", url=url, **fields)


async def problem_of(sender: WebhookSender, url: str) -> tuple[int | None, str]:
    sent = await sender.send(endpoint(url), "evt_1", "{}", at=1_000)
    return sent.status_code, sent.problem


async def test_what_receivers_do(open_sender: WebhookSender) -> None:
    async with web_server() as web:
        web.pages = {
            "/good": answer(b"ok", status="202 Accepted"),
            "/away": redirect("http://127.0.0.1:1/"),
            "/broken": answer(b"no", status="500 Internal Server Error"),
            "/slow": drips,
            "/huge": endless,
            "/headers": endless_headers,
        }
        assert await problem_of(open_sender, web.url("/good")) == (202, "")
        assert "webhook-signature: v1," in web.asked[0].lower()
        assert await problem_of(open_sender, web.url("/away")) == (
            302,
            "The receiver answered with status 302. Redirects are not followed.",
        )
        assert len(web.asked) == 2
        assert await problem_of(open_sender, web.url("/broken")) == (500, "The receiver answered with status 500.")
        assert await problem_of(open_sender, web.url("/slow")) == (None, "127.0.0.1 did not answer within 0.5 s.")
        assert await problem_of(open_sender, web.url("/huge")) == (200, "")  # what is said beyond is not read
        status, problem = await problem_of(open_sender, web.url("/headers"))
        assert status is None
        assert problem


async def test_receivers_that_hang_take_no_connection_from_others() -> None:
    opened, over = sender(), asyncio.Event()
    opened.seconds = 20.0

    async def silently(_: asyncio.StreamWriter) -> None:
        await over.wait()

    async with web_server() as web:
        web.pages = {"/hangs": silently, "/good": answer(b"ok")}
        hanging = [asyncio.create_task(problem_of(opened, web.url("/hangs"))) for _ in range(HANGING)]
        await eventually(lambda: len(web.asked) == HANGING)
        async with asyncio.timeout(10):
            assert await problem_of(opened, web.url("/good")) == (200, "")
        for task in hanging:
            task.cancel()
        over.set()
        await asyncio.gather(*hanging, return_exceptions=True)
        await opened.aclose()


async def test_names_that_nobody_answers_for_take_no_lookup_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, over, asked = sender("127.0.0.1, .example"), threading.Event(), list[str]()
    opened.seconds = 20.0
    lookup = socket.getaddrinfo

    def resolve(host: str, port: int, **options: Any) -> Any:
        asked.append(host)
        if host != "good.example":
            over.wait(30)
        return lookup("127.0.0.1", port, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    async with web_server() as web:
        web.pages = {"/": answer(b"ok")}
        # As many messages as are sent to one endpoint at once, and names of new endpoints.
        waiting = [asyncio.create_task(problem_of(opened, web.url(host="hangs.example"))) for _ in range(HANGING)]
        waiting += [asyncio.create_task(opened.check(f"http://{number}.example/")) for number in range(HANGING)]  # type: ignore[arg-type]
        await eventually(lambda: "hangs.example" in asked and "0.example" in asked)
        async with asyncio.timeout(10):
            assert await problem_of(opened, web.url(host="good.example")) == (200, "")
        assert asked.count("hangs.example") == 1, "one lookup is for all who ask"
        for task in waiting:
            task.cancel()
        over.set()
        await asyncio.gather(*waiting, return_exceptions=True)
        await opened.aclose()


@pytest.mark.parametrize("encoding", ["deflate", "br", "gzip", "nonsense"])
async def test_how_an_answer_is_packed_does_not_matter(open_sender: WebhookSender, encoding: str) -> None:
    async with web_server() as web:
        web.pages = {"/": answer(b"ok", f"Content-Encoding: {encoding}")}
        assert await problem_of(open_sender, web.url("/")) == (200, "")
        assert "accept-encoding: identity" in web.asked[0].lower()


async def refused(allowed: str, url: str) -> str:
    checking = sender(allowed)
    with pytest.raises(NetworkError) as error:
        await checking.check(url)
    assert (await problem_of(checking, url))[1] == str(error.value)
    await checking.aclose()
    return str(error.value)


async def test_where_nothing_is_sent() -> None:
    assert "WEBHOOK_ALLOWED_HOSTS" in await refused("10.0.0.1", "https://127.0.0.1/")
    assert "WEBHOOK_ALLOWED_HOSTS" in await refused("10.0.0.1", "https://[::ffff:127.0.0.1]/")
    assert "https://" in await refused("10.0.0.1", "http://93.184.216.34/")
    await sender("127.0.0.0/8").check("http://127.0.0.1:80/")


async def test_a_name_that_leads_inward_later_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, lookup, addresses = sender("10.0.0.1"), socket.getaddrinfo, ["93.184.216.34", "127.0.0.1"]
    monkeypatch.setattr(socket, "getaddrinfo", lambda _, port, **options: lookup(addresses.pop(0), port, **options))
    async with web_server() as web:
        url = web.url(host="rebinds.example", scheme="https")
        await opened.check(url)
        status, problem = await problem_of(opened, url)
        assert (status, "WEBHOOK_ALLOWED_HOSTS" in problem, web.asked) == (None, True, [])
    assert not addresses
    await opened.aclose()


async def test_a_secret_of_other_keys(open_sender: WebhookSender) -> None:
    _, sealed = sender(secrets=("another one of sixteen",)).new_secret("default")
    sent = await open_sender.send(endpoint("http://127.0.0.1:9/", secret=sealed), "evt_1", "{}", at=1)
    assert sent.problem == NOT_SEALED_HERE


async def test_an_old_secret_of_other_keys_does_not_keep_the_new_one_from_signing(open_sender: WebhookSender) -> None:
    _, sealed = sender(secrets=("another one of sixteen",)).new_secret("default")
    async with web_server() as web:
        web.pages = {"/": answer(b"ok")}
        rotated = endpoint(web.url("/"), old_secret=sealed, old_secret_until=utc(2))
        assert await open_sender.send(rotated, "evt_1", "{}", at=1) == Sent(200)
        assert web.asked[0].count("v1,") == 1


async def test_an_old_secret_signs_until_its_time_is_over(open_sender: WebhookSender) -> None:
    _, old = open_sender.new_secret("default")
    async with web_server() as web:
        web.pages = {"/": answer(b"ok")}
        rotated = endpoint(web.url("/"), old_secret=old, old_secret_until=utc(2))
        for at in (1, 2):
            assert await open_sender.send(rotated, "evt_1", "{}", at=at) == Sent(200)
        assert [asked.count("v1,") for asked in web.asked] == [2, 1]


def test_a_project_has_so_many_a_minute() -> None:
    clock = Clock(100.0)
    tests = RecentTests(clock)
    assert [tests.seconds_until_room("a") for _ in range(TESTS_A_MINUTE)] == [0] * TESTS_A_MINUTE
    assert tests.seconds_until_room("a") == 60
    assert tests.seconds_until_room("b") == 0
    clock.now += 59.5
    assert tests.seconds_until_room("a") == 1
    clock.now += 0.5
    assert tests.seconds_until_room("a") == 0
    assert list(tests._tests) == ["a"]  # of others nothing is kept
