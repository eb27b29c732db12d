"""Containers of a server that reach hosts: over http and https, with secrets that nobody sees, and what is refused."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import openai
import pytest
from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, ShellTool, set_tracing_disabled
from openai import OpenAI

from tests.kit.echo_host import EchoHost, certificate, echo_host
from tests.kit.fixtures import module_sdk
from tests.kit.sandboxes import needs_bubblewrap
from tests.kit.sdk import async_sdk_of
from tests.kit.server import Server

pytestmark = [needs_bubblewrap]

VALUE = "sk-live-6f1d2c7e9a"  # of a secret; nothing but the host may ever see it


class Hosts(NamedTuple):
    """Two hosts, which containers find at `localhost`."""

    http: EchoHost
    https: EchoHost


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """A host of http:// and one of https://, which the server trusts."""
    pem = certificate(tmp_path_factory.mktemp("tls") / "host.pem", ["localhost"])
    with echo_host() as http, echo_host(pem) as https, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(pem))
        yield Hosts(http, https)


@pytest.fixture(scope="module")
def server(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose containers may reach these, and one that cannot be reached."""
    domains = f"localhost:{hosts.http.port},localhost:{hosts.https.port},*.example.com"
    folder = tmp_path_factory.mktemp("network") / "server"
    limits = {"sandbox_memory_bytes": 256 * 1024 * 1024}
    with Server(folder, sandbox_network=domains, sandbox_allowed_hosts="localhost", **limits) as server:
        yield server
    assert "Traceback" not in server.output
    written = [each for each in folder.rglob("*") if each.is_file()]
    assert VALUE not in server.output
    assert [each for each in written if VALUE.encode() in each.read_bytes()] == []


client = module_sdk()


def policy(hosts: Hosts, *more: str, value: str = VALUE, secrets: bool = True) -> dict[str, Any]:
    """Return an allowlist with a secret."""
    domains = [f"localhost:{host.port}" for host in hosts]
    made: dict[str, Any] = {"type": "allowlist", "allowed_domains": [*domains, *more]}
    named = [{"domain": "localhost", "name": "API_KEY", "value": value}]
    return {**made, "domain_secrets": named} if secrets else made


def shell(network: Any) -> Any:
    """Return a shell in a container."""
    return {"type": "shell", "environment": {"type": "container_auto", "network_policy": network}}


def curl(url: str, more: str = '-H "X-Token: $API_KEY"') -> str:
    """Return a command that asks a host by the proxy, which `localhost` usually is not asked by."""
    return f"shell: curl -sS --noproxy '' {url} {more}"


def ran(response: Any) -> tuple[str, Any]:
    """Return the container of the only command of a response, and what came of it."""
    (call,) = (item for item in response.output if item.type == "shell_call")
    (output,) = (item for item in response.output if item.type == "shell_call_output")
    return call.environment.container_id, output.output[0]


@pytest.mark.parametrize("place", [0, 1])
def test_a_secret_reaches_its_host_and_nobody_else(client: OpenAI, server: Server, hosts: Hosts, place: int) -> None:
    url = f"{('http', 'https')[place]}://localhost:{hosts[place].port}/path"
    asked = client.responses.create(model="demo", input=curl(url), tools=[shell(policy(hosts))])
    _, output = ran(asked)
    said = json.loads(output.stdout)
    assert said["headers"]["X-Token"].startswith("respsite-secret-")
    assert hosts[place].asked[-1]["headers"]["X-Token"] == VALUE
    assert hosts[place].asked[-1]["path"] == "/path"
    stored = httpx.get(f"{server.base_url}/responses/{asked.id}").json()
    without = [{"domain": "localhost", "name": "API_KEY"}]
    for each in (json.loads(asked.to_json()), stored):
        assert each["tools"][0]["environment"]["network_policy"] == {**policy(hosts), "domain_secrets": without}
        assert VALUE not in json.dumps(each)
    assert VALUE not in httpx.get(f"{server.base_url}/responses/{asked.id}/input_items").text


def test_a_container_of_the_api_keeps_its_policy(client: OpenAI, server: Server, hosts: Hosts) -> None:
    made = client.containers.create(name="mine", network_policy=policy(hosts))  # type: ignore[arg-type]
    shown = {"type": "allowlist", "allowed_domains": policy(hosts)["allowed_domains"]}
    for each in (made, client.containers.retrieve(made.id)):
        assert each.network_policy.to_dict() == shown
    assert VALUE not in httpx.get(f"{server.base_url}/containers").text
    tool: Any = {"type": "shell", "environment": {"type": "container_reference", "container_id": made.id}}
    asked = client.responses.create(model="demo", input=curl(f"http://localhost:{hosts.http.port}/ref"), tools=[tool])
    assert json.loads(ran(asked)[1].stdout)["path"] == "/ref"
    assert hosts.http.asked[-1]["headers"]["X-Token"] == VALUE


def test_in_the_background_the_values_are_stored_nowhere(client: OpenAI, hosts: Hosts) -> None:
    url = f"https://localhost:{hosts.https.port}/background"
    asked = client.responses.create(model="demo", input=curl(url), tools=[shell(policy(hosts))], background=True)
    with client.responses.retrieve(asked.id, stream=True) as stream:
        final: Any = list(stream)[-1]
    assert VALUE not in final.to_json()
    assert json.loads(ran(final.response)[1].stdout)["path"] == "/background"
    assert hosts.https.asked[-1]["headers"]["X-Token"] == VALUE


def test_what_the_operator_does_not_allow_is_refused(client: OpenAI, hosts: Hosts) -> None:
    with pytest.raises(
        openai.BadRequestError, match=r"does not let containers reach 'pypi.org' \(SANDBOX_NETWORK\)"
    ) as no:
        client.responses.create(model="demo", input="x", tools=[shell(policy(hosts, "pypi.org"))])
    assert (no.value.param, no.value.code) == ("tools[0].environment.network_policy", "unsupported_parameter")
    assert VALUE not in str(no.value)
    with pytest.raises(openai.BadRequestError, match=r"'\*\.com' \(SANDBOX_NETWORK\)") as no:
        client.containers.create(name="x", network_policy={"type": "allowlist", "allowed_domains": ["*.com"]})
    assert no.value.param == "network_policy"


async def test_the_agents_sdk_gives_an_allowlist(server: Server, hosts: Hosts) -> None:
    set_tracing_disabled(True)
    async with async_sdk_of(server) as client:
        environment: Any = {"type": "container_auto", "network_policy": policy(hosts)}
        agent = Agent(
            name="Reaches a host",
            model=OpenAIResponsesModel(model="demo", openai_client=client),
            tools=[ShellTool(environment=environment)],
            model_settings=ModelSettings(tool_choice="auto"),
        )
        ended = await Runner.run(agent, curl(f"https://localhost:{hosts.https.port}/agent"))
    assert "/agent" in str(ended.final_output)
    assert VALUE not in str([item.raw_item for item in ended.new_items])
    assert hosts.https.asked[-1]["headers"]["X-Token"] == VALUE
