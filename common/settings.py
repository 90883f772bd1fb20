"""Settings of all services: flag > environment > genq.toml > default, each with its origin.

The only module that knows pydantic-settings. Names that people already have are accepted beside
ours (``REDIS_URL``, ``AWS_ACCESS_KEY_ID`` ...); ours begin with ``GENQ_``. Secrets never come from
flags, so they are never in a process list.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import AliasChoices, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from common.errors import UsageError
from common.nearest import did_you_mean, nearest
from common.secret_files import SUFFIX, read_secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic_core import ErrorDetails

    from common.queue.prompts import QueueLimits

CONFIG_FILE_VARIABLE = "GENQ_CONFIG"
CONFIG_FILE = "genq.toml"
EXAMPLE_FILE = "genq.toml.example"
# Variables of ours that are no settings: switches for debugging, tests, and the engine's child.
OTHER_VARIABLES = frozenset(
    {
        CONFIG_FILE_VARIABLE,
        "GENQ_DEBUG",
        "GENQ_ENGINE_API_KEY",
        "GENQ_ENGINE_TEXT_ONLY",
        "GENQ_FAILPOINT",
        "GENQ_STACK",
    }
)
TEST_VARIABLES = "GENQ_TEST_"
_DEFAULT = "the default"
MIB = 1 << 20


def _also(ours: str, *theirs: str) -> AliasChoices:
    return AliasChoices(ours, *theirs)


def _state_home() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "genq"


class Settings(BaseSettings):
    """What a service was told. Frozen; sizes in bytes, times in seconds."""

    model_config = SettingsConfigDict(
        env_prefix="GENQ_",
        frozen=True,
        extra="forbid",
        populate_by_name=True,
        hide_input_in_errors=True,
    )

    # Where things are
    redis_url: SecretStr = Field(
        SecretStr("redis://127.0.0.1:6379/0"),
        validation_alias=_also("GENQ_REDIS_URL", "RQ_REDIS_URL", "REDIS_URL"),
        description="Redis or Valkey, version 7 or later: redis://, rediss:// or unix://.",
    )
    store: str = Field("", description="Object storage: s3://bucket or s3://bucket/prefix.")
    s3_endpoint: str = Field(
        "https://s3.amazonaws.com",
        validation_alias=_also("GENQ_S3_ENDPOINT", "AWS_ENDPOINT_URL_S3", "S3_ENDPOINT"),
        description="URL of the S3-compatible service.",
    )
    s3_access_key: SecretStr | None = Field(
        None, validation_alias=_also("GENQ_S3_ACCESS_KEY", "AWS_ACCESS_KEY_ID")
    )
    s3_secret_key: SecretStr | None = Field(
        None, validation_alias=_also("GENQ_S3_SECRET_KEY", "AWS_SECRET_ACCESS_KEY")
    )
    s3_session_token: SecretStr | None = Field(
        None, validation_alias=_also("GENQ_S3_SESSION_TOKEN", "AWS_SESSION_TOKEN")
    )
    s3_region: str = Field(
        "us-east-1", validation_alias=_also("GENQ_S3_REGION", "AWS_REGION", "AWS_DEFAULT_REGION")
    )
    state_dir: Path = Field(
        default_factory=_state_home,
        description="Private folder for locks, engine records and the sink's bitmap.",
    )

    wait_seconds: float = Field(
        300.0, ge=0, description="Services wait so long at their start for Redis and storage."
    )

    # What consumers generate with
    model: str = Field("", description="Model: a folder, a .gguf file or a name.")
    engine: Literal["sglang", "llamacpp"] = "sglang"
    profile: str = Field("auto", description="Engine flags: a profile's name, auto or none.")
    gpus: str = Field("", description="For `rq worker-pool`: the GPUs of this host, as in 0,1,2,3.")

    # The queue
    lease_seconds: float = Field(60.0, gt=0, description="A dead consumer's items are back after.")
    renew_seconds: float = Field(15.0, gt=0, description="How often leases are renewed.")
    max_deliveries: int = Field(20, ge=1, description="Hand-outs of an item, at most.")
    retry_base_seconds: float = Field(5.0, ge=0, description="Wait before a second attempt.")
    retry_cap_seconds: float = Field(300.0, ge=0, description="Longest wait before an attempt.")
    stream_entries: int = Field(20_000, ge=1, description="Results waiting for the sink.")
    stream_bytes: int = Field(512 * MIB, ge=1, description="Bytes of results waiting for the sink.")
    result_ttl_seconds: int = Field(500, ge=1, description="How long RQ shows finished jobs.")

    # The consumer
    drain_seconds: float = Field(300.0, ge=0, description="Grace for requests at SIGTERM.")
    engine_key: SecretStr | None = Field(None, description="API key of the server of --url.")
    start_seconds: float = Field(1800.0, gt=0, description="Longest start of an engine.")
    honesty: bool = Field(default=True, description="Check each engine's answers before it works.")

    # What Prometheus reads
    metrics_port: int | None = Field(
        None, ge=1, le=65535, description="Prometheus endpoint of consumer, sink and exporter."
    )
    metrics_host: str = Field(
        "127.0.0.1",
        description="Where that listens; wider than loopback is warned about: no login.",
    )

    # The sink
    sink_rows: int = Field(500, ge=1, description="Completions at which a part is sealed.")
    sink_bytes: int = Field(
        64 * MIB, ge=1, description="Bytes at which a part is sealed, before it has so many."
    )
    sink_seconds: float = Field(
        60.0, gt=0, description="Seconds after which a part is sealed all the same."
    )
    sink_format: Literal["parquet", "jsonl.zst"] = "parquet"

    # The producer
    max_row_bytes: int = Field(10 * MIB, ge=1, description="Longest row that is accepted.")

    # What is said
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "console", "json"] = "auto"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take flags first, then the environment, then the file."""
        del dotenv_settings, file_secret_settings
        return (init_settings, env_settings, _TomlSource(settings_cls))

    def limits(self) -> QueueLimits:
        """Return the bounds that the queue's scripts work with."""
        from common.queue.prompts import QueueLimits  # noqa: PLC0415 - keeps redis out of --help

        return QueueLimits(
            lease_seconds=self.lease_seconds,
            stream_entries=self.stream_entries,
            stream_bytes=self.stream_bytes,
            max_deliveries=self.max_deliveries,
            retry_base_seconds=self.retry_base_seconds,
            retry_cap_seconds=self.retry_cap_seconds,
            result_ttl_seconds=self.result_ttl_seconds,
        )


class _TomlSource(PydanticBaseSettingsSource):
    """genq.toml in the working folder, or the file that GENQ_CONFIG names."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        del field, field_name
        return None, "", False

    def __call__(self) -> dict[str, Any]:
        # What a variable sets is left out: a setting with several names would be there twice.
        return {
            name: value
            for name, value in config_file_values().items()
            if not (name in Settings.model_fields and set(names_of(name)) & os.environ.keys())
        }


def config_file() -> Path | None:
    """Return the settings file in force, or None.

    Raises:
        UsageError: ``GENQ_CONFIG`` names a file that is not there.
    """
    named = os.environ.get(CONFIG_FILE_VARIABLE)
    path = Path(named or CONFIG_FILE)
    if path.is_file():
        return path
    if named:
        raise UsageError(
            f"The settings file {named} is not there.",
            why=f"{CONFIG_FILE_VARIABLE}={named}",
            fix=f"Create it, or: unset {CONFIG_FILE_VARIABLE}",
        )
    return None


def config_file_values() -> dict[str, Any]:
    """Return what genq.toml says; the top level holds names as in :class:`Settings`."""
    path = config_file()
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise UsageError(
            f"{path} cannot be read as TOML.",
            why=str(error),
            fix='Mend it; texts stand in quotes there: store = "s3://bucket/prefix"',
        ) from error


def load_settings(**flags: object) -> Settings:
    """Return the settings in force; flags that are None were not given.

    Raises:
        UsageError: a value cannot be used; names it, its place, and what is wrong with it. Or a
            variable or a name in the file looks like a setting and is none.
    """
    for unknown in unknown_variables():
        raise unknown
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        settings = Settings(**{**_secrets_in_files(), **given})  # type: ignore[arg-type]  # pydantic validates them
    except ValidationError as error:
        raise _usage_error(error.errors()[0], given) from error
    _refuse_late_renewal(settings)
    return settings


def _refuse_late_renewal(settings: Settings) -> None:
    if settings.renew_seconds > settings.lease_seconds / 3:
        raise UsageError(
            "Leases would be renewed too late.",
            why=f"renew_seconds is {settings.renew_seconds}, lease_seconds {settings.lease_seconds}"
            " (one lost renewal must not cost a lease).",
            fix="Set renew_seconds to a third of lease_seconds or less.",
        )


def examine_settings(**flags: object) -> tuple[Settings | None, list[UsageError]]:
    """Return the settings in force and all that is wrong with them; None: they cannot be used.

    Raises nothing. Variables that nothing reads are wrong, and the settings hold without them.
    """
    problems = list(unknown_variables())
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        settings = Settings(**{**_secrets_in_files(), **given})  # type: ignore[arg-type]  # pydantic validates them
        _refuse_late_renewal(settings)
    except ValidationError as error:
        problems += [_usage_error(one, given) for one in error.errors()]
    except UsageError as error:  # a file that cannot be read, or renewals that come too late
        problems.append(error)
    else:
        return settings, problems
    return None, problems


def setting_names() -> tuple[str, ...]:
    """Return the names of all settings."""
    return tuple(Settings.model_fields)


def names_of(field: str) -> tuple[str, ...]:
    """Return the environment variables that set ``field``, the strongest first."""
    alias = Settings.model_fields[field].validation_alias
    if isinstance(alias, AliasChoices):
        return tuple(str(choice) for choice in alias.choices)
    return (f"GENQ_{field.upper()}",)


def is_secret(field: str) -> bool:
    """Return whether a setting is a secret, which may also stand in a file."""
    annotation = Settings.model_fields[field].annotation
    return SecretStr in (get_args(annotation) or (annotation,))


def secret_file_variables() -> frozenset[str]:
    """Return the names that lead to files with secrets."""
    secrets = (field for field in Settings.model_fields if is_secret(field))
    return frozenset(name + SUFFIX for field in secrets for name in names_of(field))


def origin_of(field: str, flags: dict[str, Any]) -> str:
    """Return where the value of ``field`` comes from: a flag, a variable, the file or default."""
    if flags.get(field) is not None:
        return f"--{field.replace('_', '-')}"
    if is_secret(field) and (told := read_secret(names_of(field))):
        return told[1]
    for variable in names_of(field):
        if variable in os.environ:
            return variable
    if field in config_file_values():
        return str(config_file())
    return f"{_DEFAULT} ({names_of(field)[0]} is not set)"


def set_by(field: str) -> str | None:
    """Return the variable or the file that a value comes from; None where it is the default."""
    origin = origin_of(field, {})
    return None if origin.startswith(_DEFAULT) else origin


def origin_text(field: str) -> str:
    """Return a sentence for an error: where a value comes from that is no flag, or that it is not.

    For a setting with its default value it names the variable that would set it.
    """
    origin = set_by(field)
    return f"{field} comes from {origin}." if origin else f"{names_of(field)[0]} is not set."


def kind_of(field: str) -> str:
    """Return in words what kind of value a setting takes."""
    annotation = Settings.model_fields[field].annotation
    kinds = get_args(annotation) or (annotation,)
    if all(isinstance(kind, str) for kind in kinds):
        return "one of " + ", ".join(kinds)
    if bool in kinds:
        return "true or false"
    if int in kinds:
        return "a whole number"
    return "a number" if float in kinds else "a text"


def _secrets_in_files() -> dict[str, str]:
    secrets = (field for field in Settings.model_fields if is_secret(field))
    found = ((field, read_secret(names_of(field))) for field in secrets)
    return {field: told[0] for field, told in found if told}


def unknown_variables() -> Iterator[UsageError]:
    """Yield an error for each variable of the environment that looks like ours and is not."""
    settings = {name for field in Settings.model_fields for name in names_of(field)}
    known = settings | secret_file_variables() | OTHER_VARIABLES
    for name in sorted(os.environ):
        if name.startswith("GENQ_") and not (name in known or name.startswith(TEST_VARIABLES)):
            yield UsageError(
                f"{name} is not a setting{did_you_mean(name, known)}",
                why="It is set in the environment, and nothing reads it.",
                fix=f"unset {name}    ({_meant(name, known)})",
            )


def _meant(name: str, known: Iterable[str]) -> str:
    close = nearest(name, known)
    return f"or name it {close}" if close else "docs/settings.md has the names"


def _usage_error(first: ErrorDetails, flags: dict[str, Any]) -> UsageError:
    place = str(first["loc"][0]) if first["loc"] else "settings"
    field = next((name for name in Settings.model_fields if place in (name, *names_of(name))), None)
    if field is None:
        return UsageError(
            f"{place!r} is not a setting{did_you_mean(place, Settings.model_fields)}",
            why=f"It stands in {config_file() or 'the environment'}.",
            fix=f"Take it out    ({_meant(place, Settings.model_fields)})",
        )
    secret = "key" in field or "token" in field or "url" in field
    value = "(hidden)" if secret else repr(first.get("input"))
    about = Settings.model_fields[field].description
    return UsageError(
        f"{field} cannot be {value}: {first['msg']}.",
        why=f"It comes from {origin_of(field, flags)}.",
        fix=f"Set it to {kind_of(field)}." + (f" It means: {about}" if about else ""),
    )
