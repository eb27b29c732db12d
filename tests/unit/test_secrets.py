"""Secrets in files, as Docker, Kubernetes and systemd hand them out; and that nothing shows one."""

from pathlib import Path

import pytest

from responses_app.settings.conf import ConfigurationError, from_environ, secret_files, settings_class
from tests.unit.test_conf import RIGHT, assert_is_one_sentence

SECRETS = [name.removesuffix("_FILE") for name in secret_files()]


def refusal(**environ: str) -> str:
    with pytest.raises(ConfigurationError) as raised:
        from_environ(environ)
    assert_is_one_sentence(str(raised.value))
    return str(raised.value)


def test_these_are_secrets() -> None:
    assert set(SECRETS) == {
        *("SECRET_KEY", "DATABASE_URL", "REDIS_URL", "ENGINE_API_KEY", "REASONING_ENCRYPTION_KEYS", "MODELS"),
        *("MCP_SERVERS", "IMAGE_SERVICE_KEY", "SANDBOX_SECRET", "OIDC_CLIENT_SECRET"),
    }


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_read_from_a_file(name: str, tmp_path: Path) -> None:
    raw, value = RIGHT[name]
    file = tmp_path / "secret"
    file.write_text(f"{raw}\n")
    settings, warnings = from_environ({f"{name}_FILE": f" {file} "})
    assert getattr(settings, name.lower()) == value
    assert warnings == []


@pytest.mark.parametrize("name", SECRETS)
def test_two_of_them_are_one_too_many(name: str, tmp_path: Path) -> None:
    sentence = refusal(**{name: "hidden", f"{name}_FILE": str(tmp_path)})
    assert sentence.startswith(f"{name} and {name}_FILE are both set")
    assert "hidden" not in sentence


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "cannot be read (No such file or directory)"), (b" \n", "is empty"), (b"\xff\xfe\x00", "cannot be read")],
)
def test_a_file_without_a_secret_stops_the_start(content: bytes | None, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    sentence = refusal(SECRET_KEY_FILE=str(file))
    assert sentence.startswith(f"SECRET_KEY_FILE={file}")
    assert reason in sentence


def test_a_folder_is_not_a_secret(tmp_path: Path) -> None:
    assert "cannot be read (Is a directory)" in refusal(SECRET_KEY_FILE=str(tmp_path))


def test_a_wrong_secret_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("hidden")
    for given in ({"REASONING_ENCRYPTION_KEYS": "hidden"}, {"REASONING_ENCRYPTION_KEYS_FILE": str(file)}):
        assert "hidden" not in refusal(**given)


@pytest.mark.parametrize("name", [name for name in SECRETS if name != "REASONING_ENCRYPTION_KEYS"])
def test_settings_do_not_show_secrets(name: str) -> None:
    shown = repr(settings_class()(**{name.lower(): "hidden"}))
    assert "hidden" not in shown
    assert "port=8000" in shown
