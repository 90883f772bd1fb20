"""Whose the objects of a run's folder are: the run's name, its rows and its settings.

format.json names all three before there is any part. A part carries a short digest of them at the
head of its writer's token, so that its body, its metadata and its index tell it wherever they are
copied. What an older release wrote tells nothing, and is compared with nothing.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.errors import VerifyError
from common.ids import new_nonce
from common.objectstore import RunPaths
from common.queue.same_run import settings_digest

if TYPE_CHECKING:
    from common.ids import RunName
    from common.records import RunManifest

_MARK_CHARACTERS = 16
_TOKEN = re.compile(rf"([0-9a-f]{{{_MARK_CHARACTERS}}})\..+")


@dataclass(frozen=True, slots=True)
class Owner:
    """A run, as its objects name it: equal rows and settings under another name are another."""

    run: str
    fingerprint: str  # of all rows
    settings: str  # digest of all settings and the number of items

    @classmethod
    def of(cls, manifest: RunManifest) -> Owner:
        """Return the owner of the objects of a run."""
        return cls(manifest.run, manifest.fingerprint, settings_digest(manifest))

    @property
    def mark(self) -> str:
        """What the tokens of the run's parts begin with."""
        whole = f"{self.run}\n{self.fingerprint}\n{self.settings}"
        return hashlib.sha256(whole.encode()).hexdigest()[:_MARK_CHARACTERS]

    def new_token(self) -> str:
        """Return a token for a part: no two are equal."""
        return f"{self.mark}.{new_nonce()}"

    def disowns(self, token: str) -> bool:
        """Return whether a part of this token says that it is another run's."""
        return mark_of(token) not in {"", self.mark}


def mark_of(token: str) -> str:
    """Return the mark of the run that a part's token names; "" if an older release made it."""
    match = _TOKEN.fullmatch(token)
    return match[1] if match else ""


def refuse_other_name(manifest: RunManifest, run: RunName, url: str) -> None:
    """Return if a run.json that lies in the folder of ``run`` is that run's.

    Raises:
        VerifyError: it is another's, as it is where a folder was copied under another name.
    """
    if manifest.run == run:
        return
    key = RunPaths(run).run_json
    raise VerifyError(
        f"{url}/{key} is not the run {run}'s: it is that of run {manifest.run}.",
        why="A run's objects name their run, so a copy of its folder under another name is no run.",
        fix=f"Put {run}'s own run.json back from a copy: an earlier version in the bucket, or a"
        f" backup.\nIf {url}/{run} is a copy of {manifest.run}, give the run its own name; and to"
        f" use the name {run}, move the copy elsewhere.",
    )
