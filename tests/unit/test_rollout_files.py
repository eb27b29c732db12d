"""Where `respsite rollouts export --resume` goes on: behind the last roll-out that is surely whole."""

import io

import pytest

from responses_app.command_line.endpoint import CommandFailed
from responses_app.command_line.rollout_export import whole_rollouts

A, B, C = (b'{"rollout_id":"%b","group":null}\n' % name for name in (b"a", b"b:1", b"c.2"))


@pytest.mark.parametrize(
    ("content", "kept", "last"),
    [
        (b"", b"", None),
        (A, b"", None),
        (A + A, b"", None),
        (A + A + B, A + A, "a"),
        (A + B + B, A, "a"),
        (A + B + B + C[:20], A, "a"),
        (A + B + C, A + B, "b:1"),
        (A[:20], b"", None),
        (b'{"id":"t"}\n{"id":"u"}\n', b'{"id":"t"}\n', "t"),
    ],
)
def test_the_rows_of_the_last_rollout_are_dropped(content: bytes, kept: bytes, last: str | None) -> None:
    file = io.BytesIO(content)
    assert whole_rollouts(file) == last
    assert (file.getvalue(), file.tell()) == (kept, len(kept))


@pytest.mark.parametrize("content", [b"{}\n", b"words\n", b'{"rollout_id":1}\n' + A])
def test_another_file_is_left_as_it_is(content: bytes) -> None:
    file = io.BytesIO(content)
    with pytest.raises(CommandFailed):
        whole_rollouts(file)
    assert file.getvalue() == content
