"""What gen-local shows of the proof: all but a command for servers that are about to end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from deploy.pipeline import Job, LocalRun

if TYPE_CHECKING:
    from deploy.stack import Stack

SAID = """\
r  NOT proven
2 of them are kept but flagged, not ok.{advice}
  data/part-00000001.parquet is gone
"""


def test_problems_behind_the_advice_are_shown(capsys):
    told = SAID.format(advice=" To do them again: gen-producer requeue r --reason truncated")
    stack = SimpleNamespace(run_command=lambda *_, **__: (9, told))
    run = LocalRun(cast("Job", SimpleNamespace(run="r")), cast("Stack", stack))
    assert run.prove() == 9
    assert capsys.readouterr().err == SAID.format(advice="")
