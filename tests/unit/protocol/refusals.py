"""How tests of the protocol look at errors."""

from collections.abc import Callable
from typing import Any

import pytest

from responses_app.protocol.errors import ApiError


def refusal(parse: Callable[..., object], *args: Any, **named: Any) -> ApiError:
    """Return the error with which this refuses what it is given."""
    with pytest.raises(ApiError) as refused:
        parse(*args, **named)
    return refused.value
