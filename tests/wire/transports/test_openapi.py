"""The OpenAPI document says what the API does: all of its paths and methods, and bodies that it takes."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from responses_app.api.endpoints import ENDPOINTS
from responses_app.api.openapi import document
from responses_app.protocol.rate_limits import LimitLine, as_headers
from responses_app.protocol.requests.create_fields import ENGINE_FIELDS
from responses_app.protocol.requests.server_tools import DECLARED_UNASKED, server_tool_missing
from tests.kit.server import Server
from tests.system.fuzz.samples import CHAT_FIELDS, CHAT_MESSAGES, FIELDS, ITEMS, TOOL_OUTPUTS, TOOLS

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
# In a process of its own: pytest would compile all of its modules anew, for asserts that are not there.
VALIDATES = "import json, sys, schemathesis; schemathesis.openapi.from_dict(json.load(sys.stdin)).validate()"
NOT_OPENAI = {"tool_choice": {"type": "nonsense"}, "input": 7, "tools": [{}], "temperature": 3, "include": ["x"]}


def made(*, engine_fields: bool = False, auth: str = "auto") -> dict[str, Any]:
    """Return the document."""
    return document(ENDPOINTS, engine_fields=engine_fields, auth=auth)


def validator(schema: str, **options: bool) -> Draft202012Validator:
    """Return what validates against a schema of the document."""
    whole = Resource(contents=made(**options), specification=DRAFT202012)
    registry = Registry().with_resource("urn:document", whole)
    return Draft202012Validator({"$ref": f"urn:document#/components/schemas/{schema}"}, registry=registry)


def references(value: object) -> Iterator[str]:
    """Yield what a value refers to."""
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from references(inner)
    if isinstance(value, dict) and isinstance(value.get("$ref"), str):
        yield value["$ref"]


def test_every_method_of_every_path_is_there(daphne_server: Server) -> None:
    """A method that the server takes and the document lacks fails here, and one that is only in the document."""
    with httpx.Client(base_url=daphne_server.url, verify=False, timeout=30) as client:
        for path, item in made()["paths"].items():
            if path.startswith("/v1/organization/"):
                continue  # it asks for an admin key first: `test_organization` has one
            there = re.sub(r"{\w+}", "nothing", path)
            taken = {method for method in METHODS if client.request(method, there).status_code != 405}
            assert taken == {method for method in METHODS if method.lower() in item}, path


def test_the_document_is_one_of_openapi_31(daphne_server: Server) -> None:
    answer = httpx.get(f"{daphne_server.url}/openapi.json", verify=False)
    assert answer.headers["content-type"] == "application/json"
    assert answer.content == httpx.get(f"{daphne_server.base_url}/openapi.json", verify=False).content
    served = answer.json()
    assert served == made()
    validated = subprocess.run(
        [sys.executable, "-c", VALIDATES], input=answer.content, capture_output=True, check=False
    )
    assert validated.returncode == 0, validated.stderr.decode()
    schemas = served["components"]["schemas"]
    Draft202012Validator.check_schema({"$defs": schemas})
    for reference in references(served):
        *_, kind, name = reference.split("/")
        assert name in served["components"][kind], reference
    used = {reference.rpartition("/")[2] for reference in references(served)}
    assert set(schemas) <= used


def test_each_endpoint_has_an_id_of_its_own_and_answers() -> None:
    assert len({each.id for each in ENDPOINTS}) == len(ENDPOINTS)
    assert all(each.contents for each in ENDPOINTS)


def test_answers_have_the_headers_of_limits_where_a_key_may_have_limits() -> None:
    told = set(as_headers([LimitLine(name, 60, 59, 1000.0) for name in ("requests", "tokens")]))
    assert len(told) == 6
    paths = made()["paths"]
    assert told < set(paths["/v1/responses"]["post"]["responses"]["200"]["headers"])
    assert told.isdisjoint(paths["/health"]["get"]["responses"]["200"]["headers"])
    assert told < set(made()["components"]["responses"]["TooManyRequests"]["headers"])


def test_its_version_is_that_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("responses_app.api.openapi.__version__", "7.8.9")  # not what was installed
    assert made()["info"]["version"] == "7.8.9"


def test_who_needs_a_key() -> None:
    key: dict[str, list[str]] = {"bearerAuth": []}
    assert made(auth="on")["security"] == [key]
    assert made(auth="auto")["security"] == [key, {}]
    assert made(auth="off")["security"] == []
    assert made(auth="on")["paths"]["/health"]["get"]["security"] == []


def test_what_a_request_may_hold_fits_the_document() -> None:
    valid = validator("CreateResponse", engine_fields=True)
    for name, values in FIELDS.items():
        for value in values:
            valid.validate({"input": "Hello", name: value})
    for items in ITEMS:
        valid.validate({"input": items})
    taken = [tool for tool in TOOLS if tool["type"] in DECLARED_UNASKED or server_tool_missing(tool) is None]
    assert len(taken) > 10
    for tool in taken:
        valid.validate({"tools": [tool]})
    for output in TOOL_OUTPUTS:
        validator("ToolOutput").validate({"tool_call_id": "call_1", "output": output})


def test_what_a_chat_may_hold_fits_the_document(daphne_server: Server) -> None:
    valid = validator("CreateChatCompletion", engine_fields=True)
    for name, values in CHAT_FIELDS.items():
        for value in values:
            valid.validate({"messages": CHAT_MESSAGES[0], name: value})
    for messages in CHAT_MESSAGES:
        valid.validate({"messages": messages})
    for wrong in ({}, {"messages": []}, {"messages": [{"role": "user"}]}, {"messages": CHAT_MESSAGES[0], "n": 99}):
        assert not valid.is_valid(wrong)
    asked = {"messages": CHAT_MESSAGES[0], "n": 2}
    answer = httpx.post(f"{daphne_server.base_url}/chat/completions", json=asked, verify=False, timeout=30).json()
    validator("ChatCompletion").validate(answer)


def test_generators_make_clients_of_it() -> None:
    schemas = made()["components"]["schemas"]
    assert "allOf" not in json.dumps(schemas), "openapi-python-client leaves out what takes a union of such"
    assert all(set(tool) == {"$ref"} for tool in schemas["Tool"]["anyOf"]), "types with names that one can read"
    assert not {"Response", "File", "Unset"} & set(schemas), "generated clients have types of their own called so"


@pytest.mark.parametrize("field", NOT_OPENAI)
def test_what_no_request_may_hold_does_not(field: str) -> None:
    assert not validator("CreateResponse").is_valid({field: NOT_OPENAI[field]})


def test_the_fields_of_the_engine_are_there_where_they_are_taken() -> None:
    fields = [
        set(made(engine_fields=taken)["components"]["schemas"]["CreateResponse"]["properties"]) for taken in (0, 1)
    ]
    assert fields[1] - fields[0] == set(ENGINE_FIELDS) - {"mm_processor_kwargs"}


def test_a_response_fits_the_document(daphne_server: Server) -> None:
    asked = {"input": "call look for Rome", "tools": TOOLS[:1], "include": ["reasoning.encrypted_content"]}
    answer = httpx.post(f"{daphne_server.base_url}/responses", json=asked, verify=False, timeout=30).json()
    response = made()["components"]["schemas"]["ResponseResource"]
    assert set(answer) == set(response["required"])
    assert {item["type"] for item in answer["output"]} == {"reasoning", "function_call"}
    validator("ResponseResource").validate(answer)
