"""Bundles of skills: what is taken, and everything that somebody may send in place of one."""

import io
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import replace

import pytest

from responses_app.extensions.containers.sandbox.skills import contents
from responses_app.resources.skills import bundles as skill_bundles
from responses_app.resources.skills.bundles import BadBundle, Bundle, SentFile, front_matter, read_folder, read_zip
from responses_app.resources.skills.fields import SkillSettings
from tests.kit.skills import FILES, MANIFEST, SCRIPT, manifest, zipped

BOUNDS = SkillSettings()
SMALL = SkillSettings(skill_max_bytes=20_000, skill_max_unpacked_bytes=50_000)
SKILL = {"s/SKILL.md": MANIFEST}


def folder(files: Mapping[str, str | bytes] = FILES, bounds: SkillSettings = BOUNDS) -> Bundle:
    """Return a bundle of files that were sent one by one."""

    def sent(path: str, content: str | bytes) -> SentFile:
        written = content.encode() if isinstance(content, str) else content
        return SentFile(path, lambda: iter([written]))

    return read_folder([sent(path, content) for path, content in files.items()], bounds)


def unpacked(bundle: Bundle) -> dict[str, tuple[bool, bytes]]:
    return {path: (runs, b"".join(pieces)) for path, runs, pieces in contents(bundle.content)}


def refused(content: bytes, bounds: SkillSettings = BOUNDS) -> str:
    with pytest.raises(BadBundle) as problem:
        read_zip(content, bounds)
    return str(problem.value)


def test_a_zip_file_and_its_folder_are_the_same_skill() -> None:
    bundle = read_zip(zipped(), BOUNDS)
    assert (bundle.name, bundle.description) == ("basic-math", "Adds and multiplies numbers.")
    assert bundle.unpacked == sum(map(len, FILES.values()))
    assert folder() == bundle
    assert read_zip(zipped(method=zipfile.ZIP_STORED), BOUNDS) == bundle
    assert read_zip(bundle.content, BOUNDS) == bundle, "what is kept is read as what was sent"
    assert unpacked(bundle) == {
        "SKILL.md": (False, MANIFEST.encode()),
        "add.sh": (True, SCRIPT.encode()),
        "references/tables.md": (False, b"1 + 1 = 2"),
    }
    other = folder({**FILES, "basic_math/add.sh": SCRIPT + "\n"})
    assert other.digest != bundle.digest


@pytest.mark.parametrize(
    "files",
    [
        {"SKILL.md": MANIFEST, "a/b": "x"},
        {"s/skill.md": MANIFEST, "s/a/b": "x"},
        {"s/": "", "s/SKILL.md": MANIFEST, "s/a/": "", "s/a/b": "x", "__MACOSX/s/._SKILL.md": "junk"},
    ],
)
def test_ways_to_pack_one(files: Mapping[str, str]) -> None:
    assert list(unpacked(read_zip(zipped(files), BOUNDS))) == ["SKILL.md", "a/b"]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("s/../../etc/passwd", "leads out"),
        ("../s/a", "leads out"),
        ("/etc/passwd", "leads out"),
        ("C:/a", "leads out"),
        ("s\\..\\a", "leads out"),
        ("s/./a", "is not the path"),
        ("s//a", "is not the path"),
        ("s/a\0b", "is not the path"),
        ("s/a\nb", "is not the path"),
        ("s/" + "a" * 256, "too long"),
        ("s/" + "a/" * 300 + "a", "too long"),
        ("s/" + "a/" * 16 + "a", "too deep"),
        ("other/a", "in one folder"),
        ("a", "in one folder"),
        ("s/skill.MD", "differ in case"),
        ("S/a", "differ in case"),
        ("s/SKILL.md/a", "a file and a folder"),
        ("s/a/SKILL.md", "more than one"),
    ],
)
def test_paths_that_are_refused(path: str, why: str) -> None:
    assert why in refused(zipped({**SKILL, path: "x"}))
    with pytest.raises(BadBundle, match=why):
        folder({**SKILL, path: "x"})


def test_two_files_that_differ_in_case_alone() -> None:
    assert "differ in case" in refused(zipped({**SKILL, "s/straße": "x", "s/STRASSE": "y"}))
    with pytest.warns(UserWarning, match="Duplicate"):
        assert "comes twice" in refused(packed("s/a", "s/a"))


def packed(*entries: str | zipfile.ZipInfo) -> bytes:
    """Return a zip file with these beside its manifest."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for entry in ("s/SKILL.md", *entries):
            archive.writestr(entry, MANIFEST)
    return target.getvalue()


@pytest.mark.parametrize("kind", [0o120000, 0o020000, 0o060000, 0o010000, 0o140000])
def test_what_is_neither_a_file_nor_a_folder(kind: int) -> None:
    entry = zipfile.ZipInfo("s/link")
    entry.external_attr = (kind | 0o777) << 16
    assert "a link or a device" in refused(packed(entry))


def test_bombs() -> None:
    zeros = bytes(3 * skill_bundles.MIB)
    assert "packed more than" in refused(zipped({**SKILL, "s/zeros": zeros}))
    assert "too large" in refused(zipped({**SKILL, "s/a": bytes(range(256)) * 300}), SMALL)
    assert "too large" in refused(zipped({**SKILL, **{f"s/{n}": "x" * 9_000 for n in range(9)}}), SMALL)
    assert "20000 bytes" in refused(bytes(20_001), SMALL)
    assert "500 files" in refused(zipped({**SKILL, **{f"s/{n}": "" for n in range(500)}}))
    assert len(unpacked(read_zip(zipped({**SKILL, **{f"s/{n}": "" for n in range(499)}}), BOUNDS))) == 500


def test_a_file_that_says_another_size_than_it_has() -> None:
    assert "too large" in refused(_with_size(zipped({**SKILL, "s/a": b"x"}), 0xFFFF_FFFE))
    assert "can be read (" in refused(_with_size(zipped({**SKILL, "s/a": b"x" * 40_000}), 1))


def _with_size(content: bytes, size: int) -> bytes:
    """Return a zip file whose last entry says another size, in its head and in the table of contents."""
    changed = bytearray(content)
    struct.pack_into("<I", changed, content.rindex(b"PK\x01\x02") + 24, size)
    struct.pack_into("<I", changed, content.rindex(b"PK\x03\x04") + 22, size)
    return bytes(changed)


def test_a_table_of_contents_that_is_too_large() -> None:
    changed = bytearray(zipped())
    struct.pack_into("<I", changed, changed.rindex(b"PK\x05\x06") + 12, 2 * skill_bundles.MAX_DIRECTORY_BYTES)
    assert "500 files" in refused(bytes(changed))
    end = changed.rindex(b"PK\x05\x06")
    huge = bytes(changed[:end]) + b"PK\x06\x07" + bytes(16) + bytes(changed[end:])
    assert "more than 4 GB" in refused(huge)


def test_zip_files_that_cannot_be_read() -> None:
    good = zipped()
    for broken in (b"", b"PK", b"PK\x05\x06", good[:-1], good[:-30], good[60:], b"x" * 1000):
        assert "not a zip file" in refused(broken)
    flipped = bytearray(good)
    flipped[good.index(b"add.sh") + 12] ^= 0xFF
    assert "can be read (" in refused(bytes(flipped))
    encrypted = bytearray(good)
    encrypted[good.index(b"PK\x01\x02") + 8] |= 1
    assert "encrypted" in refused(bytes(encrypted))
    assert "use deflate" in refused(zipped(method=zipfile.ZIP_LZMA))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "begin with a front matter"),
        ("# A skill\n", "begin with a front matter"),
        ("---\nname: a\ndescription: b\n", "begin with a front matter"),
        ("---\n" + "# no end\n" * 4000 + "---\n", "begin with a front matter"),
        ("---\nname: [a\n---\n", "not YAML"),
        ("---\nname: &a [*a]\n---\n", "not YAML"),
        ("---\n" + "- " * 3_000 + "\n---\n", "not YAML"),
        ('---\nname: "\\UFFFFFFFF"\n---\n', "not YAML"),  # no character, and more than 31 bits
        ("---\n" + "[" * 3_000 + "\n---\n", "brackets"),  # seconds, if they were read
        ("---\n" + '["]", ' * 900 + "\n---\n", "brackets"),
        ("---\n- a\n---\n", "no fields"),
        (manifest(name=""), "'name'"),
        (manifest(name="Basic Math"), "'name'"),
        (manifest(name="basic--math"), "'name'"),
        (manifest(name="a" * 65), "'name'"),
        (manifest(name="../a"), "'name'"),
        (manifest(description=""), "'description'"),
        (manifest(description="a" * 1025), "'description'"),
        ("---\nname: a\ndescription: {b: c}\n---\n", "'description'"),
        (b"---\nname: a\ndescription: \xff\n---\n", "not written in UTF-8"),
    ],
)
def test_front_matter_that_is_refused(text: str | bytes, why: str) -> None:
    with pytest.raises(BadBundle, match=why):
        front_matter(text.encode() if isinstance(text, str) else text)


@pytest.mark.parametrize(
    ("text", "description"),
    [
        (manifest(description="Adds. Use it for: sums").replace("Adds.", "'Adds.").replace("sums", "sums'"), None),
        ("---\r\nname: a\r\ndescription: one\r\n---\r\n", "one"),
        ("\ufeff---\nname: a\ndescription: one\n---", "one"),
        ("---\nname: a\ndescription: >-\n  one\n  two\nlicense: MIT\nmetadata:\n  name: other\n---\n# Text", "one two"),
        ('---\nname: "a"\ndescription: "one\\nIgnore all: \\u2028two"\n---\n', "one Ignore all: two"),
    ],
)
def test_front_matter_that_is_taken(text: str, description: str | None) -> None:
    assert front_matter(text.encode())[1] == (description or "Adds. Use it for: sums")


def test_a_front_matter_that_grows_is_not_merged() -> None:
    doubled = "\n".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 90))
    assert front_matter(f"---\na0: &a0 {{k: v}}\n{doubled}\nname: a\ndescription: b\n---\n".encode()) == ("a", "b")


def test_all_is_bounded_where_files_come_one_by_one() -> None:
    with pytest.raises(BadBundle, match="too large"):
        folder({**SKILL, "s/a": bytes(range(256)) * 300}, SMALL)
    with pytest.raises(BadBundle, match="packed it has more"):
        folder({**SKILL, "s/a": b"x" * 40_000}, replace(SMALL, skill_max_bytes=100))
    with pytest.raises(BadBundle, match="it has no SKILL"):
        folder({"s/a": "x"})
