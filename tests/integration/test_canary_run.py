"""Whole consumers on a run whose answers go wrong: held by itself, shown, accepted, finished."""

from __future__ import annotations

import asyncio
import json
import re

import yaml

from common.errors import Exit
from common.ids import RunName
from common.objectstore import RunPaths
from common.records import Sampling
from tests.support import forge
from tests.support.consumers import SECONDS
from tests.support.fake_engine import set_faults
from tests.support.servers import eventually
from tests.support.tools import DEPLOY

RUN = RunName("one")


async def told(world, *words, code=0):
    """What gen-producer says, on both streams."""
    done = await asyncio.to_thread(
        forge.run, ["gen-producer", *words], env=world.env, capture_output=True, text=True
    )
    assert done.returncode == code, done
    return done.stdout + done.stderr


def commands_of_the_alert(run):
    """What GenqCanaryHold tells whoever is woken to type."""
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    (rule,) = (
        one for group in groups for one in group["rules"] if one.get("alert") == "GenqCanaryHold"
    )
    text = rule["annotations"]["command"].replace("{{ $labels.run }}", run)
    return [found.split() for found in re.findall(r"gen-producer ([^(),]+)", text)]


async def held_and_quiet(world):
    counts = await world.counts()
    return counts.state == "held" and not counts.leased


async def test_a_run_of_which_most_is_empty_is_held_shown_accepted_and_finished(world, engine):
    await set_faults(engine, empty_share=0.87)
    await world.load(300, canary_rows=200)
    async with world.serving(url=engine.url):
        await eventually(lambda: held_and_quiet(world), SECONDS)
        counts = await world.counts()
        assert counts.generated + sum(counts.failures.values()) <= 200
        assert counts.canary.held_for == "faults"
        seen = (counts.canary.finished, counts.canary.faults)
        said = await told(world, "status", RUN)
        assert f"one  held by canary: {seen[1]} of the first {seen[0]} rows went wrong" in said
        assert "-> empty: no text in 1 tokens" in said
        assert "row-" in said
        assert '"question ' in said
        assert "gen-producer resume one --accept" in said
        data = json.loads(await told(world, "status", RUN, "--json"))
        assert len(data["examples"]) == 2
        assert data["examples"][0]["prompt"] == f"question {data['examples'][0]['item']}"
        assert data["canary"]["worst"] == "empty"
        refused = await told(world, "resume", RUN, code=7)
        assert "--accept" in refused
        assert "cancel one" in refused
        assert "held already" in await told(world, "pause", RUN)
        assert (await world.counts()).generated == counts.generated
        await set_faults(engine, empty_share=0.0)
        look, go_on = commands_of_the_alert(RUN)
        assert "held by canary" in await told(world, *look)
        await told(world, *go_on)
        await world.generated(300)
    kept = json.loads(world.store.get(RunPaths(RUN).accepted))
    assert kept == {"accepted": ["faults"]}


async def test_a_run_of_which_most_is_cut_is_held_and_shows_what_was_said(world, engine):
    await world.load(400, canary_rows=200, sampling=Sampling(max_tokens=26))
    assert await world.burst(url=engine.url) == Exit.DONE  # nothing is to be had
    counts = await world.counts()
    assert (counts.state, counts.canary.held_for) == ("held", "truncated")
    assert counts.generated < 300
    said = await told(world, "status", RUN)
    assert "-> truncated: " in said
    first = next(one for one in world.results() if one["verdict"] == "truncated")
    assert any(one["content"][:20] in said for one in world.results())
    assert first["content"]
    assert "a higher --max-tokens" in said
    assert "kept but flagged: " in said
