"""Where a round is kept, and what of its time is counted."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from common.settings import load_settings
from consumer.engine.gpu import GpuFacts
from consumer.stopping import Stopping
from consumer.tuning import opening, tune
from consumer.tuning.opening import base_spec, round_folder
from consumer.tuning.round import Spent
from tests.support.simulated import Clock
from tests.support.tuning import options

H200 = GpuFacts("NVIDIA H200", "GPU-1", 143_771 << 20, 0)
B200 = GpuFacts("NVIDIA B200", "GPU-2", 183_359 << 20, 0)


@pytest.fixture
def settings(tmp_path):
    return load_settings(state_dir=tmp_path / "state", model="m/tiny")


class Machine:
    """The release of SGLang and the card that a test pretends to have."""

    def __init__(self, monkeypatch) -> None:
        self.version, self.card = "0.5.17", H200
        monkeypatch.setattr(opening, "installed_version", lambda: self.version)
        monkeypatch.setattr(opening, "gpu_facts", lambda _gpu: self.card)

    async def folder(self, settings, **asked):
        given = options(gpu=0, **asked)
        async with AsyncExitStack() as stack:
            return await round_folder(settings, given, base_spec(settings, given), stack)


async def test_a_round_holds_for_one_release_and_one_card(settings, monkeypatch, capsys):
    machine = Machine(monkeypatch)
    first = await machine.folder(settings)
    assert await machine.folder(settings) == first
    assert not capsys.readouterr().err, "nothing is begun anew"
    machine.card = GpuFacts(H200.name, "GPU-9", H200.total_bytes - (3 << 20), 1 << 30)
    assert await machine.folder(settings) == first, "another of its kind, or another driver"

    for version, card, said in (
        ("0.5.18", H200, "SGLang 0.5.18 on NVIDIA H200, 140 GiB"),
        ("0.5.17", B200, "SGLang 0.5.17 on NVIDIA B200, 179 GiB"),
        ("0.5.17", GpuFacts("NVIDIA H200", "MIG", 35 << 30, 0), "NVIDIA H200, 35 GiB"),
        ("0.5.17", None, "SGLang 0.5.17 on an unknown card"),
    ):
        machine.version, machine.card = version, card
        other = await machine.folder(settings)
        assert other != first
        error = capsys.readouterr().err
        assert f"begun anew, with {said}" in " ".join(error.split()) or said in error
        assert first.name in error
    await machine.folder(settings, prompts="random:8:8")
    assert not capsys.readouterr().err, "another round"


async def test_a_round_that_does_not_say_where_it_was_measured_is_begun_anew(
    settings, monkeypatch, capsys
):
    """As those of releases before this one."""
    machine = Machine(monkeypatch)
    folder = await machine.folder(settings)
    old = folder.rename(folder.with_name(folder.name.rpartition("-")[0]))
    assert await machine.folder(settings) == folder
    assert f"({old.name} in" in capsys.readouterr().err


async def test_the_time_in_which_prompts_are_rendered_is_of_the_minutes(settings, monkeypatch):
    clock, real = Clock(), tune.sample_of

    async def slow(*args):
        clock.now += 100.0
        return await real(*args)

    monkeypatch.setattr(tune, "sample_of", slow)
    async with AsyncExitStack() as stack:
        opened = await tune._open(settings, options(clock=clock), stack, Stopping())
        assert opened.round.spent.seconds == 100.0
        opened.round.spent.keep()
        assert Spent(opened.folder / "spent.json", clock).seconds == 100.0
