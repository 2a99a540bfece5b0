"""All settings, read once at the entrance: ``sparring.toml``, then the environment, then command-line options.

``SPARRING_SERVING__PORT=9000`` sets ``port`` of ``[serving]``. Unknown keys are errors wherever they stand. Below
this package nothing reads a file or the environment for its configuration: values are passed on. See
``docs/sparring.example.toml`` for every key.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, get_args

from pydantic import BaseModel, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from pipelines.config import PipelineSettings
from serving.config import ServingSettings
from sparring.errors import MisuseError
from training.config import TrainingSettings

PREFIX = "SPARRING_"
CONFIG_VARIABLE = "SPARRING_CONFIG"
DEFAULT_FILE = Path("sparring.toml")
_STATE_DIR = "state_dir"


class SettingsError(MisuseError):
    """Settings that cannot be used. One line a problem: key, value, remedy."""


class Settings(BaseSettings):
    """The settings of every part. Constructed directly it reads nothing: :func:`load_settings` does."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
    )

    state_dir: Path = Field(Path("var"), description="Folder of all that must survive: events, adapters, runs.")
    base_model: str = Field(
        "bundled", min_length=1, description="`bundled`, a model directory, or a Hugging Face model id."
    )
    serving: ServingSettings = Field(default_factory=ServingSettings, description="The HTTP service.")
    training: TrainingSettings = Field(default_factory=TrainingSettings, description="Co-training of both roles.")
    pipelines: PipelineSettings = Field(default_factory=PipelineSettings, description="From events to promotion.")

    @model_validator(mode="before")
    @classmethod
    def _one_state_dir(cls, data: Any) -> Any:
        """The parts that keep state are told where by the one key at the top."""
        if not isinstance(data, Mapping):
            return data
        shared = data.get(_STATE_DIR, cls.model_fields[_STATE_DIR].default)
        filled = dict(data)
        for section in sections_with_state():
            part = filled.get(section, {})
            if isinstance(part, Mapping):
                filled[section] = {_STATE_DIR: shared, **part}
        return filled

    @model_validator(mode="after")
    def _state_dirs_agree(self) -> Settings:
        for section in sections_with_state():
            own = getattr(self, section).state_dir
            if own != self.state_dir:
                top = self.state_dir
                raise ValueError(f"{section}.state_dir is {own}, and state_dir {top}: set only the one on top")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def sections_with_state() -> list[str]:
    """Names of the parts that have a ``state_dir`` of their own."""
    return [
        name
        for name, field in Settings.model_fields.items()
        if isinstance(field.annotation, type)
        and issubclass(field.annotation, BaseModel)
        and _STATE_DIR in field.annotation.model_fields
    ]


def load_settings(config: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read and validate everything.

    ``config`` None means the path in ``SPARRING_CONFIG``, else ``./sparring.toml`` if there is one. ``overrides``
    (nested, as in the file) win over the environment, which wins over the file. Raises SettingsError.
    """
    path = _config_path(config)
    content = _read(path) if path else {}
    _check_environment()

    class Loaded(Settings):
        from_file: ClassVar[dict[str, Any]] = content

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, content)

    try:
        return Loaded(**dict(overrides or {}))
    except ValidationError as error:
        source = f" ({path}, environment or options)" if path else " (environment or options)"
        lines = [_explain(dict(problem)) for problem in error.errors()]
        told = "\n".join(f"{line}{source}" for line in lines)
    except ValueError as error:
        told = f"the environment's {PREFIX}... variables cannot be read: {error}"
    # Out here it has neither cause nor context: those errors keep what was read, passwords too.
    raise SettingsError(told)


def _config_path(config: Path | None) -> Path | None:
    named = config or (Path(os.environ[CONFIG_VARIABLE]) if os.environ.get(CONFIG_VARIABLE) else None)
    if named is None:
        return DEFAULT_FILE if DEFAULT_FILE.is_file() else None
    if not named.is_file():
        raise SettingsError(f"{named}: no such settings file; name one with --config or {CONFIG_VARIABLE}")
    return named


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not a TOML file: {error}") from error


def _check_environment() -> None:
    """A mistyped variable would otherwise be passed over in silence. Nested names are checked by validation."""
    for name in os.environ:
        if not name.startswith(PREFIX) or name == CONFIG_VARIABLE:
            continue
        first = name.removeprefix(PREFIX).lower().split("__")[0]
        if first not in Settings.model_fields:
            hint = _closest(first, Settings.model_fields)
            hint = f"did you mean {PREFIX}{hint.upper()}...?" if hint else "unset it"
            raise SettingsError(f"{name}: unknown variable, {hint}")


def _explain(problem: dict[str, Any]) -> str:
    key = ".".join(str(part) for part in problem["loc"]) or "settings"
    if problem["type"] == "extra_forbidden":
        siblings = _fields_at(problem["loc"][:-1])
        close = _closest(str(problem["loc"][-1]), siblings)
        return f"{key}: unknown key, " + (f"did you mean {close}?" if close else f"known: {', '.join(siblings)}")
    if problem["type"] == "value_error":
        told = str(problem["msg"]).removeprefix("Value error, ")
        return told if key == "settings" else f"{key}: {told}"
    if problem["type"] == "missing":
        return f"{key}: is not set, and has no default"
    # A table may hold a secret, and so may a key that is one.
    if isinstance(problem["input"], Mapping) or _is_secret(problem["loc"]):
        return f"{key}: will not do: {problem['msg']}"
    return f"{key}: {problem['input']!r} will not do: {problem['msg']}"


def _model_at(path: tuple[Any, ...]) -> type[BaseModel] | None:
    model: type[BaseModel] = Settings
    for part in path:
        field = model.model_fields.get(str(part))
        inner = None if field is None else section_model(field.annotation)
        if inner is None:
            return None
        model = inner
    return model


def section_model(annotation: Any) -> type[BaseModel] | None:
    """The model of a section, also of one that may be left out; None for a plain value."""
    for part in (annotation, *get_args(annotation)):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
    return None


def _fields_at(path: tuple[Any, ...]) -> list[str]:
    model = _model_at(path)
    return [] if model is None else list(model.model_fields)


def _is_secret(path: tuple[Any, ...]) -> bool:
    model = _model_at(path[:-1])
    field = None if model is None else model.model_fields.get(str(path[-1]))
    return field is not None and SecretStr in (field.annotation, *get_args(field.annotation))


def _closest(word: str, known: Any) -> str | None:
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return found[0] if found else None
