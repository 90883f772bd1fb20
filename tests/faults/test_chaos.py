"""The chaos run, short: a few seeds of few items. `make chaos` runs long ones."""

from __future__ import annotations

import pytest

from tests.faults.chaos import PROGRAMS, run_chaos
from tests.faults.schedule import KINDS, draw
from tests.support.forge import running_forge

ITEMS, FAULTS = 200, 7


@pytest.fixture(scope="module")
def forge():
    with running_forge(*PROGRAMS) as made:
        yield made


@pytest.mark.row("A1")
@pytest.mark.row("G1")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_under_random_faults_each_item_ends_once(forge, s3_server, tmp_path, seed):
    report = await run_chaos(
        seed, ITEMS, FAULTS, forge=forge, s3=s3_server, folder=tmp_path, say=print
    )
    assert report.problems == []
    assert (report.lost, report.doubled) == (0, 0)
    assert report.committed + report.dead == ITEMS
    assert report.samples > 0


def test_a_seed_gives_its_schedule_again_and_every_kind_its_turn():
    faults = draw(7, 2 * len(KINDS))
    assert faults == draw(7, 2 * len(KINDS)) != draw(8, 2 * len(KINDS))
    assert all(sum(fault.kind == kind for fault in faults) == 2 for kind in KINDS)
    assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
