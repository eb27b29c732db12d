"""`respsite doctor`: what is well, what is wrong, and what to do."""

import asyncio
import json
from pathlib import Path

import pytest

from responses_app.command_line import doctor
from responses_app.kit.findings import Finding
from tests.kit.databases import database_settings, postgres
from tests.kit.forged_provider import ForgedProvider
from tests.kit.server import Server, free_port, manage
from tests.wire.command_line.program import respsite, settings_of

PATIENT = ("--seconds", "60")  # on a busy machine everything takes its time


def test_a_server_that_is_well(daphne_server: Server) -> None:
    done = respsite("doctor", "--json", *PATIENT, **settings_of(daphne_server))
    told = json.loads(done.stdout)
    assert (done.returncode, [each for each in told["findings"] if each["level"] == "problem"]) == (0, [])
    assert any(each["text"] == f"a server is ready at {daphne_server.url}" for each in told["findings"])
    assert {"versions", "database", "clocks", "redis", "disk", "engine", "sandbox"} <= {
        each["subject"] for each in told["findings"]
    }


def test_everything_that_is_wrong_is_told_at_once_and_what_to_do(tmp_path: Path) -> None:
    dead = free_port()
    settings = database_settings(tmp_path, manage) | {
        "DATA_DIR": str(tmp_path),
        "PORT": str(free_port()),
        "REDIS_URL": f"redis://127.0.0.1:{dead}/0",
        "SEARCH_URL": f"http://127.0.0.1:{dead}",
        "MCP_SERVERS": '{"files": {"command": "no-such-program"}}',
        "ENGINE": "vllm-server",
        "ENGINE_URL": f"http://127.0.0.1:{dead}",
        "MODEL": "some/model",
        "SANDBOX": "off",
    }
    done = respsite("doctor", *PATIENT, **settings)
    assert done.returncode == 1
    to_do = done.stdout.partition("What to do, in this order")[2].splitlines()[1:]
    assert [line.split(":")[0] for line in to_do[:4]] == ["1. redis", "2. engine", "3. search", "4. tools"]
    assert "REDIS_URL" in to_do[0]
    assert "ENGINE_URL" in to_do[1]
    assert f"the vLLM server at http://127.0.0.1:{dead} is out of reach (Connection refused)." in to_do[1]
    assert "ClientConnector" not in done.stdout
    assert "Install no-such-program." in to_do[3]
    assert "\x1b" not in done.stdout, "a pipe gets no colour"


@pytest.mark.needs("postgres")
def test_a_database_that_has_no_connection_left(tmp_path: Path) -> None:
    role = postgres().create_role(connections=0)
    url = postgres().url.replace("postgres@", f"{role}@")
    own = {"DATABASE_URL": url, "DATA_DIR": str(tmp_path), "PORT": str(free_port())}
    findings = json.loads(respsite("doctor", "--json", *PATIENT, **own).stdout)["findings"]
    (advice,) = (each["advice"] for each in findings if each["subject"] == "database")
    assert advice.startswith("The database has no connection left.")
    postgres().drop_role(role)


def test_the_provider_of_single_sign_on_is_asked(tmp_path: Path) -> None:
    with ForgedProvider() as provider:
        base = database_settings(tmp_path, manage) | {"DATA_DIR": str(tmp_path), "PORT": str(free_port())}
        own = {
            "OIDC_ISSUER": provider.issuer, "OIDC_CLIENT_ID": "us", "OIDC_CLIENT_SECRET": "s" * 20,
            "OIDC_ROLES": '{"ops": "operator"}',
        }  # fmt: skip

        def told() -> tuple[str, str, str]:
            findings = json.loads(respsite("doctor", "--json", *PATIENT, **base, **own).stdout)["findings"]
            (one,) = (each for each in findings if each["subject"] == "sign-on")
            return one["level"], one["text"], one["advice"]

        assert told() == ("ok", f"{provider.issuer} answers", "")
        provider.document["issuer"] = "http://127.0.0.1:9"
        level, text, advice = told()
        assert (level, "OIDC_ISSUER" in advice) == ("problem", True)
        assert "it calls itself 'http://127.0.0.1:9', which OIDC_ISSUER has to be" in text
    assert told()[0] == "problem", "it is away"


def test_a_wrong_setting_comes_before_all_else() -> None:
    done = respsite("doctor", PORT="many")
    assert done.returncode == 1
    assert "PORT='many' is not valid" in done.stdout


def test_what_gives_no_answer_is_named_with_its_setting() -> None:
    async def hang() -> list[Finding]:
        await asyncio.Event().wait()
        return []

    subjects = {"redis": "REDIS_URL", "engine": "ENGINE_URL", "sandbox": "--seconds"}
    for subject, named in subjects.items():
        (finding,) = asyncio.run(doctor._checked(subject, hang(), 0.01))
        assert finding.subject == subject
        assert named in finding.advice
