"""What is sealed opens for those it was meant for, as it was, and in no other case."""

import base64
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from responses_app.protocol.sealing import MAX_BYTES, SealBroken, Sealer

OLD, NEW = "the secret of last year", "the secret of this year"
DATA = b"They greet each other."


def sealer(*secrets: str) -> Sealer:
    return Sealer(secrets or (NEW,), random_bytes=os.urandom)


def raw(envelope: str) -> bytes:
    return base64.urlsafe_b64decode(envelope + "=" * (-len(envelope) % 4))


def broken(envelope: str, by: Sealer, *, purpose: str = "compaction", project: str = "default") -> bool:
    try:
        by.open(purpose, project, envelope)
    except SealBroken:
        return True
    return False


@given(st.binary(max_size=2000), st.text(max_size=9), st.text(max_size=9))
def test_what_was_sealed_opens(data: bytes, purpose: str, project: str) -> None:
    assert sealer().open(purpose, project, sealer().seal(purpose, project, data)) == data


def test_an_envelope_tells_nothing_and_is_never_the_same() -> None:
    first, second = (sealer().seal("compaction", "default", DATA) for _ in range(2))
    assert first != second
    assert b"greet" not in raw(first)
    assert first.isascii()
    assert first.replace("-", "").replace("_", "").isalnum()


def test_no_byte_can_be_changed() -> None:
    envelope = raw(sealer().seal("compaction", "default", DATA))
    for index in range(len(envelope)):
        changed = bytearray(envelope)
        changed[index] ^= 1
        assert broken(base64.urlsafe_b64encode(changed).decode().rstrip("="), sealer()), index


def test_no_character_can_be_changed() -> None:
    """Not even a bit that base64 does not read."""
    for size in range(3):
        envelope = sealer().seal("compaction", "default", DATA + b"x" * size)
        for index, letter in enumerate(envelope):
            other = "A" if letter != "A" else "B"
            assert broken(envelope[:index] + other + envelope[index + 1 :], sealer()), index
            neighbour = chr(ord(letter) ^ 1)
            assert broken(envelope[:index] + neighbour + envelope[index + 1 :], sealer()), index


@given(st.data())
def test_no_part_can_be_cut_or_added(data: st.DataObject) -> None:
    envelope = sealer().seal("compaction", "default", DATA)
    begin, end = sorted((data.draw(st.integers(0, len(envelope))), data.draw(st.integers(0, len(envelope)))))
    if begin < end:
        assert broken(envelope[:begin] + envelope[end:], sealer())
    assert broken(envelope[:begin] + data.draw(st.text(min_size=1, max_size=4)) + envelope[begin:], sealer())


@settings(max_examples=300)
@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda value: base64.urlsafe_b64encode(value).decode()))
def test_anything_else_is_broken(envelope: str) -> None:
    assert broken(envelope, sealer())


def test_it_opens_for_its_project_and_purpose_alone() -> None:
    envelope = sealer().seal("compaction", "default", DATA)
    assert broken(envelope, sealer(), project="other")
    assert broken(envelope, sealer(), purpose="reasoning")
    assert broken(envelope, sealer(), purpose="compactiond", project="efault")


def test_secrets_can_be_rotated() -> None:
    envelope = sealer(OLD).seal("compaction", "default", DATA)
    assert sealer(NEW, OLD).open("compaction", "default", envelope) == DATA
    assert broken(envelope, sealer(NEW))
    newer = sealer(NEW, OLD).seal("compaction", "default", DATA)
    assert sealer(NEW).open("compaction", "default", newer) == DATA
    assert broken(newer, sealer(OLD))


def test_the_content_is_bounded() -> None:
    most = sealer().seal("compaction", "default", b"x" * MAX_BYTES)
    assert len(most) < 10_000, "it is compressed"
    assert len(sealer().open("compaction", "default", most)) == MAX_BYTES
    with pytest.raises(ValueError, match="too much"):
        sealer().seal("compaction", "default", b"x" * (MAX_BYTES + 1))
    noise = os.urandom(MAX_BYTES)
    assert sealer().open("compaction", "default", sealer().seal("compaction", "default", noise)) == noise


def test_a_sealer_needs_a_secret() -> None:
    with pytest.raises(ValueError, match="secret"):
        Sealer([], random_bytes=os.urandom)


class TestSealsThatAreAlwaysTheSame:
    @given(st.binary(max_size=2000), st.text(max_size=9), st.text(max_size=9), st.text(max_size=9))
    def test_what_was_sealed_opens_and_every_worker_seals_it_so(
        self, data: bytes, purpose: str, project: str, place: str
    ) -> None:
        first, second = (sealer().seal_again(purpose, project, data, place=place) for _ in range(2))
        assert first == second
        assert sealer().open(purpose, project, first) == data

    def test_whatever_is_another_has_another_nonce(self) -> None:
        """GCM breaks where one key seals two contents under one nonce."""
        given = [
            (purpose, project, data, place)
            for purpose in ("a", "ab")
            for project in ("b", "c", "bc")
            for data in (b"", b"x", b"x" * 1000, b"y")
            for place in ("", "d", "cd")
        ]
        envelopes = [sealer().seal_again(a, b, data, place=d) for a, b, data, d in given]
        assert len({raw(envelope)[5:17] for envelope in envelopes}) == len(given)
        assert raw(sealer(OLD).seal_again("a", "b", b"x", place="d"))[5:17] not in {
            raw(each)[5:17] for each in envelopes
        }

    def test_no_byte_can_be_changed_and_nothing_cut(self) -> None:
        envelope = raw(sealer().seal_again("reasoning", "default", DATA, place="rs_1"))
        for index in range(len(envelope)):
            changed = bytearray(envelope)
            changed[index] ^= 3  # it has the other version, too
            for damaged in (bytes(changed), envelope[:index]):
                written = base64.urlsafe_b64encode(damaged).decode().rstrip("=")
                assert broken(written, sealer(), purpose="reasoning"), index

    def test_it_opens_for_its_project_and_purpose_alone_under_any_secret_that_is_left(self) -> None:
        envelope = sealer(OLD).seal_again("reasoning", "default", DATA, place="rs_1")
        assert sealer(NEW, OLD).open("reasoning", "default", envelope) == DATA
        assert broken(envelope, sealer(NEW), purpose="reasoning")
        assert broken(envelope, sealer(OLD), purpose="compaction")
        assert broken(envelope, sealer(OLD), purpose="reasoning", project="other")
        assert sealer(NEW, OLD).seal_again("reasoning", "default", DATA, place="rs_1") != envelope

    def test_the_content_is_bounded_and_hidden(self) -> None:
        with pytest.raises(ValueError, match="too much"):
            sealer().seal_again("reasoning", "default", b"x" * (MAX_BYTES + 1), place="")
        assert b"greet" not in raw(sealer().seal_again("reasoning", "default", DATA, place=""))
