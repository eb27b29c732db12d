"""The response object at its start: every field of the spec, an echo of its request."""

from responses_app.protocol.requests.requests import new_response, parse_create
from tests.kit.laws import new_stream
from tests.kit.oracle import validate_response


def test_the_new_response_is_what_the_sdk_calls_one() -> None:
    request = parse_create(
        {
            "input": "hi",
            "model": "m",
            "instructions": "x",
            "metadata": {"a": "b"},
            "tools": [{"type": "function", "name": "f"}],
            "reasoning": {"effort": "xhigh", "summary": "auto"},
            "truncation": "auto",
            "temperature": 1,
            "max_output_tokens": 5,
            "text": {"verbosity": "low"},
        }
    )
    validate_response(new_response(request, response_id="resp_1", created_at=1, model="m", store=True))
    validate_response(new_response(parse_create({}), response_id="resp_1", created_at=1, model="m", store=True))


def test_a_response_echoes_and_does_not_share_with_its_request() -> None:
    stream = new_stream()
    assert stream.snapshot()["metadata"] == {"a": "b"}
