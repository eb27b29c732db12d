"""What stands for secrets inside: where values take its place, and how they are taken out of answers."""

import base64
import html
import json
import time
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from responses_app.extensions.containers.egress.policy import EgressPolicy
from responses_app.extensions.containers.egress.secrets import (
    KEPT_VALUES,
    Mask,
    Placeholders,
    SecretExposed,
    SecretLost,
)

VALUE = 'p/4+ss"word'
POLICY = EgressPolicy.read(
    {
        "allowed_domains": ["api.example", "other.example"],
        "domain_secrets": [
            {"domain": "api.example", "name": "TOKEN", "value": VALUE},
            {"domain": "api.example", "name": "LOST"},
            {"domain": "other.example", "name": "TOKEN", "value": "another value"},
        ],
    }
)


def filled(placeholders: Placeholders, target: bytes = b"/", *headers: tuple[bytes, bytes], **more: Any) -> Any:
    """Return the head of a request to the domain of the secrets."""
    host, is_private = more.get("host", "api.example"), more.get("is_private", True)
    return placeholders.fill(POLICY, host, more.get("port", 443), (target, headers), is_private=is_private)


def test_a_value_takes_its_place_in_the_target_and_in_headers() -> None:
    held = Placeholders(POLICY)
    stands = held.by_name["TOKEN"].encode()
    basic = b"Basic " + base64.b64encode(b"me:" + stands)
    got = filled(held, b"/x?key=" + stands, (b"Authorization", b"Bearer " + stands), (b"authorization", basic))
    assert got.target == b"/x?key=" + quote(VALUE, safe="").encode()
    bearer, user = (value for _, value in got.headers)
    assert bearer == b"Bearer " + VALUE.encode()
    assert base64.b64decode(user.removeprefix(b"Basic ")) == b"me:" + VALUE.encode()
    mask = held.mask(POLICY, got.encoded)
    assert mask.whole(b" ".join((got.target, bearer, user))) == b" ".join(
        (b"/x?key=" + stands, b"Bearer " + stands, basic)
    )


def test_each_domain_has_its_own_value_and_all_others_none() -> None:
    held = Placeholders(POLICY)
    stands = held.by_name["TOKEN"].encode()
    header = (b"X-Key", stands)
    assert filled(held, b"/", header, host="other.example").headers == [(b"X-Key", b"another value")]
    untouched = filled(held, b"/" + stands, header, host="third.example")
    assert (untouched.target, list(untouched.headers)) == (b"/" + stands, [header])
    assert Placeholders(POLICY).by_name != held.by_name, "another container has another one"


def test_a_value_that_was_lost_or_that_others_could_read_is_said() -> None:
    held = Placeholders(POLICY)
    with pytest.raises(SecretLost, match="LOST"):
        filled(held, held.by_name["LOST"].encode())
    with pytest.raises(SecretExposed, match="TOKEN"):
        filled(held, held.by_name["TOKEN"].encode(), is_private=False)
    assert filled(held, b"/plain", is_private=False).target == b"/plain"


FORMS = (
    VALUE,
    quote(VALUE),
    quote(VALUE, safe=""),
    json.dumps(VALUE)[1:-1],
    json.dumps(VALUE)[1:-1].replace("/", "\\/"),
    quote(VALUE, safe="+").lower(),
    html.escape(VALUE),
    "".join(f"&#{ord(each)};" for each in VALUE),
    "".join(f"\\u{ord(each):04x}" for each in VALUE),
    VALUE.encode().hex(),
)


@given(
    parts=st.lists(
        st.sampled_from([*FORMS, *(each[:-1] for each in FORMS), *(each[1:] for each in FORMS), "p", "/", "x" * 50])
    ),
    sizes=st.lists(st.integers(1, 30), min_size=1),
)
def test_a_stream_is_masked_however_it_is_cut(parts: list[str], sizes: list[int]) -> None:
    held = Placeholders(POLICY)
    content = "".join(parts).encode()
    whole = held.mask(POLICY, {}).whole(content)
    mask, told, place = held.mask(POLICY, {}), b"", 0
    while place < len(content):
        size = sizes[place % len(sizes)]
        told += mask.add(content[place : place + size])
        place += size
    told += mask.end()
    # What stands for it is random: with what follows it could be a value in hex.
    rest = told.replace(held.by_name["TOKEN"].encode(), b"*")
    assert not any(each.encode() in rest for each in FORMS)
    assert told == whole


def test_what_no_token_could_begin_with_is_told_at_once() -> None:
    mask = Mask({b"secret": b"*"})
    for each in (b"data: one\n\n", b'data: {"a": "se"}', b"<p>sec</p>", b"[1, 2,"):
        assert mask.add(each) == each
    assert mask.add(b"data: sec") == b"data: "
    assert mask.add(b"ond\n") == b"second\n"
    assert mask.add(b"the secret") == b"the "
    assert mask.end() == b"*"
    assert Mask({}).add(b"anything") == b"anything"
    long = Mask({b"secret": b"*"})
    assert long.add(b"x" * 1000 + b"secre") == b"x" * 945
    assert long.add(b"t") == b"x", "no more waits than a value may have, all of it escaped"
    assert long.end() == b"x" * 54 + b"*"


@given(
    st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=8).filter(lambda each: each == each.strip())
)
def test_how_much_waits_tells_nothing_of_a_value(value: str) -> None:
    """It did: a beginning that was right waited, and one that was wrong came at once."""
    for size in range(1, len(value)):
        wrong = chr(ord(value[size - 1]) ^ 1)
        if wrong not in value or not wrong.isprintable():
            continue
        guesses = [f"\n{value[: size - 1]}{each}".encode() for each in (value[size - 1], wrong)]
        assert len({len(Mask({value.encode(): b"*"}).add(each)) for each in guesses}) == 1
    assert Mask({value.encode(): b"*"}).add(f"\n{value}\n".encode()) == b"\n*\n"


@given(before=st.binary(max_size=5), behind=st.binary(max_size=5))
def test_a_value_in_base64_is_found_wherever_it_begins(before: bytes, behind: bytes) -> None:
    """Servers write a header as base64, or give a part of one back; PHP's JSON escapes its slashes."""
    held = Placeholders(POLICY)
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        content = encode(before + VALUE.encode() + behind)
        for each in (content, content.replace(b"/", b"\\/"), quote(content, safe="").encode()):
            told = held.mask(POLICY, {}).whole(b"it is " + each + b".")
            assert held.by_name["TOKEN"].encode() in told
            assert len(told) - len(held.by_name["TOKEN"]) < len(before + behind) * 4 + 20


def test_values_that_were_given_before_are_masked_still() -> None:
    held = Placeholders(POLICY)
    given = [VALUE]
    policy = POLICY
    held.mask(policy, {})
    for number in range(KEPT_VALUES - 1):
        given.append(f"new value {number}")
        policy = policy.with_values([{"domain": "api.example", "name": "TOKEN", "value": given[-1]}])
        held.mask(policy, {})
    stands = held.by_name["TOKEN"].encode()
    for each in given:
        assert held.mask(policy, {}).whole(each.encode()) == stands
    for number in range(100):
        policy = policy.with_values([{"domain": "api.example", "name": "TOKEN", "value": f"newest value {number}"}])
        held.mask(policy, {})
    assert held.mask(policy, {}).whole(VALUE.encode()) == VALUE.encode(), "no more are kept than may be"
    assert held.mask(policy, {}).whole(b"another value") == stands, "one that is still in use is never forgotten"


def test_values_and_answers_that_are_made_to_take_long_take_no_longer() -> None:
    """They did: each byte of an answer was compared with all of each value, for minutes."""
    values = ["a" * (8000 + each) + "b" + "a" * 100 for each in range(32)]
    secrets = [{"domain": "api.example", "name": f"S{place}", "value": value} for place, value in enumerate(values)]
    policy = EgressPolicy.read({"allowed_domains": ["api.example"], "domain_secrets": secrets})
    held = Placeholders(policy)
    mask = held.mask(policy, {})
    begun = time.process_time()
    for piece in (b"a" * 65536, b"%61" * 20000, b"YWFh" * 16384):
        mask.add(piece)
    for _ in range(50):
        mask.add(b"a")
    mask.end()
    assert time.process_time() - begun < 5
    for place in (3, 31):
        told = mask.whole(b"before " + values[place].encode() + b" behind")
        assert b"respsite-secret" in told
        # What stands for it is random, and may have as many of the letter.
        assert b"aaaa" not in told.replace(held.by_name[f"S{place}"].encode(), b"*")


def test_nothing_tells_a_value() -> None:
    held = Placeholders(POLICY)
    got = filled(held, held.by_name["TOKEN"].encode())
    for each in (POLICY, POLICY.secrets, got, POLICY.public()):
        assert VALUE not in repr(each)
    again = EgressPolicy.read(POLICY.public())
    assert again.key == POLICY.key
    assert [each.value for each in again.secrets] == [None, None, None]
    values = [{"domain": "api.example", "name": "TOKEN", "value": "new value"}]
    assert [each.value for each in POLICY.with_values(values).secrets] == ["new value", None, "another value"]
    assert POLICY.with_values([]) == POLICY
