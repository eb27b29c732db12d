"""`network_policy`: domains, secrets, what is echoed, and what no error and no echo tells."""

from typing import Any

import pytest

from responses_app.protocol.errors import ApiError
from responses_app.protocol.fields import noting
from responses_app.protocol.files.containers import Domain, parse_container
from responses_app.protocol.items.items import parse_input
from responses_app.protocol.requests.server_tools import parse_server_tool, private_fields, private_key

VALUE = "sk-1234567890"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("PyPI.org", Domain("pypi.org")),
        ("*.example.com", Domain("example.com", below=True)),
        ("api.example.com:8443", Domain("api.example.com", port=8443)),
        ("bücher.example.", Domain("xn--bcher-kva.example")),
        ("localhost:80", Domain("localhost", port=80)),
        ("_dmarc.example.com", Domain("_dmarc.example.com")),
    ],
)
def test_domains_are_read(written: str, read: Domain) -> None:
    assert Domain.parse(written) == read
    assert Domain.parse(str(read)) == read


@pytest.mark.parametrize(
    "written",
    [
        *("", "*", "*.", ".example.com", "a..b", "https://example.com", "example.com/path", "user@example.com"),
        *("127.0.0.1", "2130706433", "0x7f.1", "127.1", "[::1]", "::1", "[::1]:443", "example.com:0", "example.com:x"),
        *("example.com:65536", "example.com:", "a*.example.com", "*.*.example.com", "a b.com", "-a.com", "a" * 64),
        *("example.com:٣", "a.com\n", "." * 10, "ab." * 100 + "com", "a\0b.com"),
    ],
)
def test_what_is_no_domain_is_refused(written: str) -> None:
    if written == "a.com\n":
        assert Domain.parse(written) == Domain("a.com")
        return
    with pytest.raises(ValueError, match="a domain like"):
        Domain.parse(written)


def test_a_domain_stands_for_itself_or_for_those_below_it() -> None:
    one, below, port = map(Domain.parse, ("example.com", "*.example.com", "example.com:8443"))
    assert [one.covers("example.com", each) for each in (80, 443, 8443, 22)] == [True, True, False, False]
    assert [port.covers("example.com", each) for each in (80, 443, 8443)] == [False, False, True]
    assert not one.covers("a.example.com", 443)
    assert not below.covers("example.com", 443)
    assert not below.covers("badexample.com", 443)
    assert below.covers("b.a.example.com", 443)
    assert not one.covers("example.com.evil.test", 443)


def test_one_domain_may_include_another() -> None:
    includes = {
        ("example.com", "example.com"): True,
        ("example.com", "example.com:443"): True,
        ("example.com", "example.com:8443"): False,
        ("example.com:8443", "example.com"): False,
        ("example.com", "a.example.com"): False,
        ("example.com", "*.example.com"): False,
        ("*.example.com", "a.example.com"): True,
        ("*.example.com", "*.example.com"): True,
        ("*.example.com", "*.a.example.com"): True,
        ("*.a.example.com", "*.example.com"): False,
        ("*.example.com", "example.com"): False,
    }
    for (one, other), expected in includes.items():
        assert Domain.parse(one).includes(Domain.parse(other)) is expected, (one, other)


def policy(*secrets: Any, domains: Any = ("api.example.com", "*.example.org")) -> dict[str, Any]:
    return {"type": "allowlist", "allowed_domains": list(domains), "domain_secrets": list(secrets)}


def secret(**fields: Any) -> dict[str, Any]:
    return {"domain": "api.example.com", "name": "API_KEY", "value": VALUE, **fields}


def shell(network: Any) -> dict[str, Any]:
    return {"type": "shell", "environment": {"type": "container_auto", "network_policy": network}}


def interpreter(network: Any) -> dict[str, Any]:
    return {"type": "code_interpreter", "container": {"type": "auto", "network_policy": network}}


@pytest.mark.parametrize(("made", "at"), [(shell, "environment"), (interpreter, "container")])
def test_the_echo_has_no_value_and_can_be_read_again(made: Any, at: str) -> None:
    tool = made(policy(secret()))
    with noting():
        echoed: Any = parse_server_tool(tool, "tools[0]")
    without = {"domain": "api.example.com", "name": "API_KEY"}
    assert echoed[at]["network_policy"] == {**policy(), "domain_secrets": [without]}
    assert parse_server_tool(echoed, "tools[0]") == echoed, "as it was kept, for another worker"
    with noting(), pytest.raises(ApiError) as caught:
        parse_server_tool(echoed, "tools[0]")
    assert caught.value.param == f"tools[0].{at}.network_policy.domain_secrets[0].value"


def test_the_values_are_private() -> None:
    other = secret(name="OTHER")
    tools = [shell(policy(secret())), shell(policy(other)), interpreter(policy()), {"type": "function", "name": "f"}]
    private = private_fields(tools)
    assert private[private_key(tools[0])] == {"domain_secrets": [secret()]}, "the first one counts"
    assert private[private_key(tools[2])] == {}
    label = {"type": "mcp", "server_label": "shell", "server_url": "https://x.example"}
    assert private_fields([label, *tools])[private_key(label)] == {"server_url": "https://x.example"}


def test_tools_in_items_are_kept_without_values() -> None:
    """Nobody runs these tools; but the items of a request are stored, and given back."""
    mcp = {**mcp_of("x"), "authorization": VALUE, "headers": {"X-Key": VALUE}}
    function = {"type": "function", "name": "value", "parameters": {"type": "object", "properties": {"value": {}}}}
    strange = {"type": "shell", "environment": {"network_policy": {"domain_secrets": [1, VALUE, {"value": VALUE}]}}}
    tools = [shell(policy(secret())), interpreter(policy(secret())), mcp, function, strange, VALUE[:3]]
    items: list[Any] = [
        {"type": "additional_tools", "role": "developer", "tools": tools},
        {"type": "tool_search_output", "call_id": "c", "tools": tools},
        {**shell(policy(secret())), "type": "shell_call", "call_id": "c"},
    ]
    kept: Any = parse_input(items)[1]
    assert VALUE not in str(kept)
    without: Any = {"domain": "api.example.com", "name": "API_KEY"}
    assert kept[0]["tools"][:3] == [shell(policy(without)), interpreter(policy(without)), mcp_of("x")]
    assert kept[0]["tools"][3] == function
    assert kept[2] == {"type": "shell_call", "call_id": "c", "environment": shell(policy(without))["environment"]}
    assert tools[0] == shell(policy(secret())), "what came is not changed"
    plain: Any = [{"type": "additional_tools", "tools": [shell({"type": "disabled"}), {"type": "shell"}]}]
    assert parse_input(plain)[1] == plain


def mcp_of(label: str) -> dict[str, Any]:
    return {"type": "mcp", "server_label": label}


@pytest.mark.parametrize(
    ("network", "param"),
    [
        ({"type": "allowlist"}, "allowed_domains"),
        (policy(domains=[]), "allowed_domains"),
        (policy(domains=["a.com"] * 201), "allowed_domains"),
        (policy(domains=["ok.example", "https://x"]), "allowed_domains[1]"),
        (policy(domains=[1]), "allowed_domains[0]"),
        ({"type": "disabled", "allowed_domains": ["a.com"]}, "allowed_domains"),
        ({"type": "open"}, "type"),
        (policy(secret(domain="other.example")), "domain_secrets[0].domain"),
        (policy(secret(domain="*.example.org")), "domain_secrets[0].domain"),
        (policy(secret(domain="api.example.com:8443")), "domain_secrets[0].domain"),
        (policy(secret(name="1X")), "domain_secrets[0].name"),
        (policy(secret(name="A=B")), "domain_secrets[0].name"),
        *((policy(secret(name=name)), "domain_secrets[0].name") for name in ("PATH", "LD_PRELOAD", "https_proxy")),
        *((policy(secret(name=name)), "domain_secrets[0].name") for name in ("SSL_CERT_FILE", "PYTHONPATH", "ENV")),
        (policy(secret(), secret()), "domain_secrets[1].name"),
        *((policy(secret(value=value)), "domain_secrets[0].value") for value in ("short", "x" * 8193, f" {VALUE}")),
        *(
            (policy(secret(value=value)), "domain_secrets[0].value")
            for value in (f"{VALUE}\r\nX: y", f"{VALUE}é", 17, None)
        ),
        (policy(*(secret(name=f"N{each}") for each in range(33))), "domain_secrets"),
    ],
)
def test_what_is_not_taken(network: Any, param: str) -> None:
    with noting(), pytest.raises(ApiError) as caught:
        parse_server_tool(shell(network), "tools[0]")
    assert caught.value.param == f"tools[0].environment.network_policy.{param}"
    assert VALUE not in str(caught.value)
    with noting(), pytest.raises(ApiError) as caught:
        parse_container({"name": "mine", "network_policy": network})
    assert caught.value.param == f"network_policy.{param}"


def test_a_secret_may_be_for_what_a_wildcard_allows() -> None:
    with noting():
        parse_server_tool(shell(policy(secret(domain="a.example.org"))), "tools[0]")
        parse_container({"name": "mine", "network_policy": policy(secret(domain="api.example.com:443"))})
        assert VALUE not in repr(parse_container({"name": "mine", "network_policy": policy(secret())}))
