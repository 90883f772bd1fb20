"""What ``gen-producer doctor`` adds: the model whose tokenizer `plan` and `load` count with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from common.doctor.command import Patient, run_doctor
from common.doctor.engine_model import look_at_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from common.errors import Exit

PRODUCER = Patient(
    "producer",
    conditional=False,  # one conditional PUT, run.json, which is read back
    more=lambda settings: look_at_model(settings.model, needed=False),
)


def doctor(flags: Mapping[str, Any], *, as_json: bool) -> Exit:
    """Examine what the producer needs; see :func:`common.doctor.command.run_doctor`."""
    return run_doctor(PRODUCER, flags, as_json=as_json)
