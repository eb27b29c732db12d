"""What an error says of a name that a client has made up."""

import pytest

from responses_app.protocol.errors import ApiError
from responses_app.protocol.requests.requests import parse_create


def test_an_error_does_not_give_a_long_name_back_whole() -> None:
    with pytest.raises(ApiError) as raised:
        parse_create({"input": "hi", "logit_bias": {"9" * 100_000: 1}})
    assert len(str(raised.value)) + len(raised.value.param or "") < 500
