"""Secrets in files: ``GENQ_REDIS_URL_FILE=/run/secrets/redis-url`` beside ``GENQ_REDIS_URL``.

So Docker's and Kubernetes' secrets and systemd's credentials need no shell to become a variable.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

SUFFIX = "_FILE"
LONGEST_BYTES = 65_536


def read_secret(names: Iterable[str]) -> tuple[str, str] | None:
    """Return the secret that the first of ``names`` with a file leads to, and its variable.

    A line end at the file's end is no part of it. A variable of the same name goes before its file.

    Raises:
        UsageError: the file cannot be read, or holds nothing, or is no text of a sane size.
    """
    for name in names:
        if name in os.environ:
            return None
        variable = name + SUFFIX
        if path := os.environ.get(variable):
            return _read(variable, Path(path)), variable
    return None


def _read(variable: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(LONGEST_BYTES + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        # A decoder's own words would quote what it stumbled over.
        why = error.strerror or str(error) if isinstance(error, OSError) else "It is no UTF-8 text."
        raise UsageError(
            f"The secret in {path} cannot be read.",
            why=f"{variable}={path}: {why}",
            fix=f"ls -l {path}    (the service's user must be able to read it)",
        ) from None
    secret = text.rstrip("\r\n")
    if not secret or len(text) > LONGEST_BYTES:
        raise UsageError(
            f"The file {path} holds no secret.",
            why=f"{variable}={path}: it is {'empty' if not secret else 'too large'}.",
            fix=f"Write the value to it, as one line, or: unset {variable}",
        )
    return secret
