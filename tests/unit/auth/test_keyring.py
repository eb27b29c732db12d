"""The keys in use: read once, looked after, and good for a while when the database is away."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping

import pytest

from responses_app.auth import keyring
from responses_app.auth.keyring import KeyRing
from responses_app.kit.errors import StoreError
from responses_app.protocol.api_keys import KeyRecord, digest_of
from responses_app.protocol.errors import ApiError
from tests.kit.waiting import eventually


class Keys:
    """Keys in memory; it counts what it is asked, and can be away or hang."""

    def __init__(self) -> None:
        self.kept: dict[str, KeyRecord] = {}
        self.asked: list[list[str]] = []
        self.used: list[str] = []
        self.is_away = False
        self.answers = asyncio.Event()
        self.answers.set()

    def make(self, secret: str, *, revoked: bool = False, expires_at: float | None = None) -> KeyRecord:
        digest = digest_of(secret)
        key = KeyRecord(id=f"key_{secret}", project="p", digest=digest, revoked=revoked, expires_at=expires_at)
        self.kept[digest] = key
        return key

    async def find(self, digests: Collection[str]) -> Mapping[str, KeyRecord]:
        self.asked.append(list(digests))
        await self.answers.wait()
        if self.is_away:
            raise StoreError("away")
        return {digest: self.kept[digest] for digest in digests if digest in self.kept}

    async def note_use(self, key_ids: Collection[str], at: float) -> None:
        self.used += key_ids

    async def aclose(self) -> None:
        pass


@pytest.fixture
def keys() -> Keys:
    return Keys()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is due after a few hundredths of a second."""
    for name in ("REFRESH_SECONDS", "ANSWER_SECONDS", "IDLE_SECONDS", "NOTED_SECONDS"):
        monkeypatch.setattr(keyring, name, 0.03)


@pytest.fixture
async def ring(keys: Keys) -> AsyncIterator[KeyRing]:
    ring = KeyRing(keys, now=lambda: 1000.0)
    ring.start()
    yield ring
    await ring.aclose()


async def test_a_key_is_read_once_and_by_all_who_ask_together(keys: Keys, ring: KeyRing) -> None:
    key = keys.make("sk-a")
    assert await asyncio.gather(*(ring.find("sk-a") for _ in range(50))) == [key] * 50
    assert await ring.find("sk-a") == key
    assert len(keys.asked) == 1


@pytest.mark.usefixtures("quick")
async def test_while_no_key_is_in_use_the_database_is_asked_for_none(
    keys: Keys, ring: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    refreshes: list[int] = []
    refresh = ring._refresh

    async def noted() -> None:
        refreshes.append(len(ring._known))
        await refresh()

    monkeypatch.setattr(ring, "_refresh", noted)
    keys.make("sk-a")
    assert await ring.find("sk-a") is not None
    await eventually(lambda: not ring._known)  # it was idle for long enough
    assert all(refreshes)


async def test_what_is_not_a_key_is_asked_for_once_a_second(
    keys: Keys, ring: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyring, "REFRESH_SECONDS", 60.0)
    assert [await ring.find("sk-x") for _ in range(5)] == [None] * 5
    assert len(keys.asked) == 1
    monkeypatch.setattr(keyring, "REFRESH_SECONDS", 0.0)
    keys.make("sk-x")
    assert await ring.find("sk-x") is not None


async def test_a_flood_of_made_up_keys_keeps_no_revoked_one_open(
    keys: Keys, ring: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyring, "MAX_WAITING", 20)
    key = keys.make("sk-in-use")
    assert await ring.find("sk-in-use") == key
    keys.asked.clear()
    keys.answers.clear()
    flood = [asyncio.create_task(ring.find(f"sk-made-up-{number}")) for number in range(30)]
    await eventually(lambda: all(task.done() for task in flood[20:]))
    for task in flood[20:]:
        with pytest.raises(ApiError) as refused:
            task.result()
        assert refused.value.status == 503
    assert sum(asked != [key.digest] for asked in keys.asked) <= keyring.MAX_ASKING
    keys.answers.set()
    assert await asyncio.gather(*flood[:20]) == [None] * 20


async def test_how_many_are_remembered_is_bounded(keys: Keys, ring: KeyRing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring, "MAX_KEYS", 10)
    monkeypatch.setattr(keyring, "MAX_UNKNOWN", 10)
    for number in range(50):
        keys.make(f"sk-{number}")
        assert await ring.find(f"sk-{number}") is not None
        assert await ring.find(f"no-{number}") is None
    assert len(ring._known) <= 10
    assert len(ring._unknown) <= 10


@pytest.mark.parametrize("made", [{"revoked": True}, {"expires_at": 1000.0}, {"expires_at": 999.0}])
async def test_a_key_that_opens_no_more_opens_nothing(keys: Keys, ring: KeyRing, made: dict[str, object]) -> None:
    keys.make("sk-a", **made)  # type: ignore[arg-type]
    assert await ring.find("sk-a") is None
    keys.make("sk-b", expires_at=1000.1)
    assert await ring.find("sk-b") is not None


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("gone", [False, True])
async def test_who_came_in_by_a_key_is_told_once_that_it_is_revoked(keys: Keys, ring: KeyRing, gone: bool) -> None:
    told: list[str] = []
    keys.make("sk-a")
    key = await ring.find("sk-a")
    assert key is not None
    ring.watch(key, lambda: told.append("one"))
    ring.watch(key, lambda: told.append("left"))()
    if gone:
        keys.kept.clear()
    else:
        keys.make("sk-a", revoked=True)
    await eventually(lambda: bool(told))
    assert await ring.find("sk-a") is None
    await asyncio.sleep(0.1)
    assert told == ["one"]


async def test_a_watch_of_a_key_that_is_gone_already_is_told_at_once(keys: Keys, ring: KeyRing) -> None:
    told: list[bool] = []
    ring.watch(keys.make("sk-a"), lambda: told.append(True))
    await eventually(lambda: bool(told))


@pytest.mark.usefixtures("quick")
async def test_keys_in_use_open_while_the_database_is_away_and_others_are_a_503(
    keys: Keys, ring: KeyRing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keyring, "IDLE_SECONDS", 60.0)
    key = keys.make("sk-a")
    assert await ring.find("sk-a") == key
    for make_away in (lambda: setattr(keys, "is_away", True), keys.answers.clear):
        make_away()
        before = len(keys.asked)
        await eventually(lambda before=before: len(keys.asked) > before + 1)
        assert await ring.find("sk-a") == key
    keys.answers.set()
    with pytest.raises(ApiError) as error:
        await ring.find("sk-new")
    assert error.value.status == 503
    assert error.value.helps_to_wait
    keys.is_away = False
    keys.make("sk-a", revoked=True)
    await eventually(lambda: "API keys can be read again" in caplog.text)
    assert await ring.find("sk-a") is None
    assert caplog.text.count("API keys cannot be read") == 1


async def test_nobody_comes_in_by_what_is_known_for_too_long(
    keys: Keys, ring: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys.make("sk-a")
    assert await ring.find("sk-a") is not None
    ring._is_away = True
    monkeypatch.setattr(keyring, "MAX_STALE_SECONDS", -1.0)
    with pytest.raises(ApiError):
        await ring.find("sk-a")


async def test_a_worker_that_stood_still_reads_them_before_it_opens(
    keys: Keys, ring: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys.make("sk-a")
    assert await ring.find("sk-a") is not None
    keys.make("sk-a", revoked=True)
    monkeypatch.setattr(keyring, "MAX_AGE_SECONDS", -1.0)
    assert await asyncio.gather(*(ring.find("sk-a") for _ in range(5))) == [None] * 5


@pytest.mark.usefixtures("quick")
async def test_keys_that_nobody_uses_are_forgotten_but_not_those_of_connections(keys: Keys, ring: KeyRing) -> None:
    keys.make("sk-idle")
    held = keys.make("sk-held")
    for secret in ("sk-idle", "sk-held"):
        assert await ring.find(secret) is not None
    ring.watch(held, lambda: None)
    await eventually(lambda: list(ring._known) == [held.digest])
    await eventually(lambda: set(keys.used) <= {"key_sk-idle", "key_sk-held"} and "key_sk-held" in keys.used)


async def test_it_ends_with_its_tasks(keys: Keys) -> None:
    ring = KeyRing(keys, now=lambda: 0.0)
    ring.start()
    keys.answers.clear()
    waiting = asyncio.create_task(ring.find("sk-a"))
    await eventually(lambda: bool(keys.asked))
    await ring.aclose()
    with pytest.raises((asyncio.CancelledError, ApiError)):
        await waiting
    assert {task.get_name() for task in asyncio.all_tasks()}.isdisjoint({"key ring", "key", "keys in use"})
