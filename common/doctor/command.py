"""One doctor's visit for one service: settings, host, Redis, storage, and what the service adds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from common.cliutil import genq_version
from common.codec import dumps
from common.doctor.findings import Finding, Part, Report, skipped
from common.doctor.host import look_at_host, look_at_settings
from common.doctor.queue import look_at_redis
from common.doctor.storage import look_at_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from common.errors import Exit
    from common.settings import Settings


@dataclass(frozen=True, slots=True)
class Patient:
    """A service, and what it needs beyond being let in."""

    service: str
    writes: bool = True  # to object storage
    conditional: bool = True  # it rests on conditional writes
    more: Callable[[Settings], Sequence[Finding]] = lambda _settings: ()


def examine(patient: Patient, flags: Mapping[str, Any]) -> Report:
    """Return what there is to say of a service with these flags. Changes nothing that stays."""
    settings, findings, rows = look_at_settings(flags)
    if settings is None:
        why = "the settings cannot be used"
        findings += [skipped(part, "all", why) for part in (Part.REDIS, Part.STORE)]
    else:
        findings += look_at_host(settings)
        findings += asyncio.run(look_at_redis(settings, patient.service))
        findings += look_at_store(settings, writes=patient.writes, conditional=patient.conditional)
        findings += patient.more(settings)
    return Report(patient.service, genq_version(), findings, rows)


def run_doctor(patient: Patient, flags: Mapping[str, Any], *, as_json: bool) -> Exit:
    """Examine a service, print the report on stdout, return its exit code."""
    report = examine(patient, flags)
    click.echo(dumps(report.as_data()).decode() if as_json else report.as_text())
    return report.exit_code
