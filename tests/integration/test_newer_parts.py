"""Parts that a newer sink wrote: they are whole, and nobody is told to delete them."""

from __future__ import annotations

import asyncio

import pytest

from common.corpus import read_corpus
from common.errors import StoreError, VerifyError
from common.ids import RunName
from common.installing import UPGRADE
from common.objectstore import RunPaths
from common.parts import SUFFIXES
from common.parts.chain import walk
from common.records import RESULT_VERSION
from tests.support.committed import add_parts, store_committed
from tests.support.completions import completion
from tests.support.sinks import load_job, local_lab

RUN = RunName("r")
PATHS = RunPaths(RUN)


@pytest.fixture(params=SUFFIXES)
def part(request, store):
    """The key of a part as of a newer sink, behind one of ours."""
    newer = completion(1, version=RESULT_VERSION + 1)
    store_committed(store, RUN, [[completion(0)], [newer]], suffix=request.param)
    return PATHS.part(1, request.param)


@pytest.mark.parametrize(
    "words",
    [
        ("verify", RUN),
        ("report", RUN, "--json"),
        ("export", RUN, "--to", "messages", "-"),
    ],
)
def test_a_command_says_which_part_it_is_and_what_to_install(part, producer, words):
    said = producer(*words, code=5).err
    assert f"{part} was written by a newer genq" in said
    assert UPGRADE in said
    assert "damaged" not in said


async def test_a_sink_waits_for_no_store_and_says_what_to_install(settings, store):
    job = await load_job(settings, RUN, rows=2)
    add_parts(store, RUN, [[completion(0, version=RESULT_VERSION + 1)]], suffix="jsonl.zst")
    store.delete(PATHS.index(0))
    async with local_lab(settings, job) as lab:
        await job.answer_all()
        with pytest.raises(VerifyError, match="newer genq") as refused:
            await asyncio.wait_for(lab.finish(), 30)
    assert refused.value.fix == UPGRADE


def test_the_chain_is_not_called_broken(part, store):
    store.delete(PATHS.index(1))
    with pytest.raises(StoreError, match="newer genq") as refused:
        list(walk(store, PATHS, part.partition(".")[2]))
    assert refused.value.fix == UPGRADE


def test_nor_is_a_trainer_told_of_damage(part, store):
    piece = read_corpus(store, [RUN]).pieces[1]
    with pytest.raises(StoreError, match="newer genq") as refused:
        list(piece.completions(store.get(part), 0, 1))
    assert refused.value.fix == UPGRADE
