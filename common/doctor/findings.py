"""What a service's ``doctor`` found: how it is shown, as data too, and its exit code.

The schema of ``--json`` is in docs/doctor.md; ``SCHEMA_VERSION`` grows when a field changes its
meaning or goes, not when one is added.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from common.errors import Exit, GenqError

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA_VERSION = 1


class Level(StrEnum):
    """How bad a finding is. ``skip``: something before failed, or none is named."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


class Part(StrEnum):
    """What is looked at, in this order; the first part with a failure gives the exit code."""

    SETTINGS = "settings"
    HOST = "host"
    REDIS = "redis"
    STORE = "s3"
    GPU = "gpu"
    ENGINE = "engine"
    MODEL = "model"


EXITS = {
    Part.SETTINGS: Exit.USAGE,
    Part.HOST: Exit.USAGE,
    Part.REDIS: Exit.QUEUE,
    Part.STORE: Exit.STORE,
    Part.GPU: Exit.ENGINE,
    Part.ENGINE: Exit.ENGINE,
    Part.MODEL: Exit.ENGINE,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. ``fix``: what to do about it, a command where there is one."""

    part: Part
    name: str
    level: Level
    what: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting as it may be shown."""

    name: str
    value: str
    origin: str
    secret: bool


@dataclass(frozen=True, slots=True)
class Report:
    """All that a doctor found for one service."""

    service: str
    genq_version: str
    findings: Sequence[Finding]
    settings: Sequence[SettingRow]

    @property
    def exit_code(self) -> Exit:
        """The code of the first part, in the order of :class:`Part`, in which something fails."""
        failed = {found.part for found in self.findings if found.level is Level.FAIL}
        return next((EXITS[part] for part in Part if part in failed), Exit.DONE)

    def as_data(self) -> dict[str, Any]:
        """Return it as docs/doctor.md describes it."""
        return {
            "version": SCHEMA_VERSION,
            "service": self.service,
            "genq_version": self.genq_version,
            "exit_code": int(self.exit_code),
            "findings": [
                {
                    "part": str(found.part),
                    "name": found.name,
                    "level": str(found.level),
                    "what": found.what,
                    "fix": found.fix,
                }
                for found in self.findings
            ],
            "settings": [
                {
                    "name": row.name,
                    "value": row.value,
                    "origin": row.origin,
                    "secret": row.secret,
                }
                for row in self.settings
            ],
        }

    def as_text(self) -> str:
        """Return one line a finding, its remedy below it, then the settings."""
        lines = []
        for found in self.findings:
            lines.append(f"{found.level:<5} {found.part:<9} {found.name:<18} {found.what}")
            if found.fix and found.level is not Level.OK:
                lines.append(f"{'':<5} {'':<9} -> {found.fix}")
        width = max((len(row.name) for row in self.settings), default=0)
        if self.settings:
            lines += ["", "settings (flag > environment > file > default):"]
        lines += [
            f"  {row.name:<{width}}  {row.value or '(empty)'}  <- {row.origin}"
            for row in self.settings
        ]
        return "\n".join([*lines, "", self._verdict()])

    def _verdict(self) -> str:
        failed = sum(found.level is Level.FAIL for found in self.findings)
        warned = sum(found.level is Level.WARN for found in self.findings)
        if failed:
            return (
                f"{failed} failed, {warned} to look at: gen-{self.service} cannot work like this."
            )
        if warned:
            return f"Nothing failed, {warned} to look at: gen-{self.service} can work."
        return f"All is well for gen-{self.service}."


def failed(part: Part, name: str, error: GenqError, *, level: Level = Level.FAIL) -> Finding:
    """Return the finding that an error of ours comes to, in one line."""
    words = " ".join(f"{error.what} {error.why}".split())
    return Finding(part, name, level, words, " ".join(error.fix.split()))


def skipped(part: Part, name: str, why: str) -> Finding:
    """Return a finding of what could not be looked at."""
    return Finding(part, name, Level.SKIP, f"not looked at: {why}")
