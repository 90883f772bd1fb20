"""Rounds of tuning over simulated servers and a simulated clock."""

from __future__ import annotations

from consumer.tuning.report import Facts
from consumer.tuning.round import Round, Spent
from consumer.tuning.search import Search
from consumer.tuning.steady import Pace
from tests.support.simulated import BASE, space

PACE = Pace(measure_seconds=20.0, least_seconds=8.0)
FACTS = Facts(model="Qwen3.6-27B", base=BASE, sample="a test", minutes=30.0)


class Silent:
    def begin(self, *_):
        pass

    def end(self, *_):
        pass

    def say(self, _):
        pass


def round_of(folder, servers, *, minutes, **options) -> Round:
    state_dtype = options.pop("state_dtype", False)
    return Round(
        search=Search(folder / "journal.log"),
        tried=servers,
        space_of=lambda baseline: space(baseline, state_dtype=state_dtype),
        pace=PACE,
        minutes=minutes,
        spent=Spent(folder / "spent.json", servers.clock),
        clock=servers.clock,
        board=Silent(),
        **options,
    )
