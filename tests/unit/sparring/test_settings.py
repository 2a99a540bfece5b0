"""Settings are read once, and every mistake in them names its key and the remedy."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.example import example
from sparring.settings import Settings, SettingsError, load_settings, sections_with_state

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "sparring.example.toml"


@pytest.fixture(autouse=True)
def _nothing_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(folder: Path, text: str) -> Path:
    path = folder / "settings.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_without_file_and_environment_the_defaults_hold() -> None:
    assert load_settings().model_dump() == Settings().model_dump()


def test_the_example_has_every_default_and_is_up_to_date() -> None:
    remedy = "run: python -m sparring.example > docs/sparring.example.toml"
    assert EXAMPLE.read_text(encoding="utf-8") == example(), remedy
    assert load_settings(EXAMPLE).model_dump() == Settings().model_dump()


def test_options_win_over_environment_and_environment_over_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "[serving]\nport = 1001\nmax_tokens = 11\ntemperature = 0.5\n")
    monkeypatch.setenv("SPARRING_SERVING__PORT", "1002")
    monkeypatch.setenv("SPARRING_SERVING__MAX_TOKENS", "12")
    loaded = load_settings(path, {"serving": {"port": 1003}})
    assert (loaded.serving.port, loaded.serving.max_tokens, loaded.serving.temperature) == (1003, 12, 0.5)


def test_the_file_is_found_by_variable_and_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sparring.toml").write_text("[serving]\nport = 1001\n", encoding="utf-8")
    assert load_settings().serving.port == 1001
    monkeypatch.setenv("SPARRING_CONFIG", str(write(tmp_path, "[serving]\nport = 1002\n")))
    assert load_settings().serving.port == 1002


def test_one_state_dir_reaches_every_part(tmp_path: Path) -> None:
    loaded = load_settings(write(tmp_path, 'state_dir = "elsewhere"\n'))
    assert sections_with_state()
    for section in sections_with_state():
        assert getattr(loaded, section).state_dir == Path("elsewhere")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[serving]\nprot = 1\n", "serving.prot: unknown key, did you mean port?"),
        ("[servin]\nport = 1\n", "servin: unknown key, did you mean serving?"),
        ("[serving.engine]\nthread = 1\n", "serving.engine.thread: unknown key, did you mean threads?"),
        ("[serving]\nport = 70000\n", "serving.port: 70000 will not do: Input should be less than or equal to 65535"),
        ("[serving]\nport = 'x'\n", "serving.port: 'x' will not do"),
        ("[serving]\nstate_dir = 'other'\n", "serving.state_dir is other, and state_dir var: set only the"),
        ("port = = 1\n", "not a TOML file"),
    ],
)
def test_a_mistake_in_the_file_names_key_value_and_remedy(tmp_path: Path, text: str, complaint: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        load_settings(path)
    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(write(tmp_path, "[serving]\nprot = 1\nport = -1\n"))
    assert "serving.prot" in str(caught.value)
    assert "serving.port" in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "complaint"),
    [
        ("SPARRING_SERVIN__PORT", "1", "SPARRING_SERVIN__PORT: unknown variable, did you mean SPARRING_SERVING...?"),
        ("SPARRING_SERVING__PROT", "1", "serving.prot: unknown key, did you mean port?"),
        ("SPARRING_SERVING__PORT", "x", "serving.port: 'x' will not do"),
    ],
)
def test_a_mistake_in_the_environment_is_no_less_an_error(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, complaint: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert complaint in str(caught.value)


def test_a_missing_file_that_was_named_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such settings file"):
        load_settings(tmp_path / "absent.toml")


# Each example reads a file from a disk that others use too.
@settings(deadline=None)
@given(st.integers(0, 65535))
def test_every_port_survives_the_way_through_the_file(tmp_path_factory: pytest.TempPathFactory, port: int) -> None:
    path = write(tmp_path_factory.mktemp("settings"), f"[serving]\nport = {port}\n")
    assert tomllib.loads(path.read_text())["serving"]["port"] == load_settings(path).serving.port
