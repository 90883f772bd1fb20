"""genq.toml.example, made from the settings' own names, descriptions and defaults.

``python -m tests.support.settings_example`` writes it; a test compares.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr

from common.settings import EXAMPLE_FILE, Settings, kind_of, names_of

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

PAGE = Path(__file__).resolve().parents[2] / EXAMPLE_FILE
HEAD = """\
# Settings of genq. Copy this file to genq.toml in the working folder (or name another place with
# GENQ_CONFIG) and take the # from what you change. Flags and environment variables go before it.
# Written by `make docs` from common/settings.py; a test compares.
"""


def example() -> str:
    """Return the file: every setting, commented out, with its default."""
    return HEAD + "".join(_entry(name, field) for name, field in Settings.model_fields.items())


def _entry(name: str, field: FieldInfo) -> str:
    about = f"# {field.description}\n" if field.description else ""
    return (
        f"\n{about}# ({kind_of(name)}; or {', '.join(names_of(name))})\n#{name} = {_value(field)}\n"
    )


def _value(field: FieldInfo) -> str:
    if field.default_factory is not None:  # differs from user to user
        return '"~/.local/state/genq"'
    default = field.default
    if isinstance(default, SecretStr):  # the built-in one is no secret
        default = default.get_secret_value()
    return "(not set)" if default is None else json.dumps(default)


if __name__ == "__main__":
    PAGE.write_text(example(), encoding="utf-8")
