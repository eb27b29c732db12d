"""Names of files, as they are kept and as file systems take them."""

import pytest

from responses_app.protocol.files.files import name_in_container, name_on_disk, plain_name


@pytest.mark.parametrize("letter", ["n", "é", "報", "💻"])
def test_a_long_name_fits_wherever_it_is_kept(letter: str) -> None:
    kept = plain_name(f"folder/{letter * 600}.xlsx")
    assert kept == f"{letter * 250}.xlsx"
    first = name_in_container(kept, ())
    second = name_in_container(kept, (first,))
    for name in (name_on_disk(kept), first, second):
        assert name.startswith(letter)
        assert name.endswith(".xlsx")
        assert 76 < len(name.encode()) <= 255
    assert second.endswith("_2.xlsx")
    assert name_on_disk(f"short{letter}") == f"short{letter}"
