"""What lies in a run's folder says whose it is: nothing is taken for a run's that is another's."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace

import pytest

from common import codec
from common.errors import StoreError, VerifyError
from common.family import Family
from common.ids import RunName
from common.objectstore import RunPaths
from common.parts import SUFFIXES, WRITER, codec_for
from common.parts.chain import format_key
from common.parts.index import describe_part
from common.parts.owner import Owner, mark_of
from common.prove import committed_items, prove, read_manifest
from common.queue.prompts import PromptQueue
from common.queue.run_state import Runs
from common.redis_client import open_client
from consumer.leases.catalogue import Catalogue
from consumer.sink.opening import own_manifest
from tests.support.loads import RUN, write
from tests.support.sinks import Job, local_lab, proven

ROWS = 12  # and five a part: three parts
SECONDS = 30
OTHER = "other"
PATHS, OTHERS = RunPaths(RunName(RUN)), RunPaths(RunName(OTHER))
BOTH = pytest.mark.parametrize("scene", SUFFIXES, indirect=True)


@dataclass
class Scene:
    """Two data sets of as many rows, of which one differs, and all hands on the runs of them."""

    ask: object
    settings: object
    store: object
    ours: object
    others: object
    suffix: str

    async def load(self, rows, *flags, name=RUN, code=0):
        return await self.ask("load", rows, "--model", "m", "--run", name, *flags, code=code)

    async def answer(self, name=RUN):
        """Answer what is open, and let a sink that knows nothing of the run end it."""
        job = await self.job(name)
        async with local_lab(self.settings, job) as lab:
            await job.answer_all()
            await asyncio.wait_for(lab.finish(suffix=self.suffix), SECONDS)
            await proven(job)

    async def job(self, name):
        redis = open_client(self.settings, name="tests")
        runs = Runs(redis, self.settings.limits())
        info = await runs.get(name)
        queue = PromptQueue(redis, info.run, info.epoch, self.settings.limits())
        manifest = await asyncio.to_thread(read_manifest, self.store, name)
        return Job(redis, self.store, runs, queue, manifest, info)

    async def flush(self):
        async with open_client(self.settings, name="tests") as redis:
            await redis.flushall()

    async def redis_is_empty(self):
        async with open_client(self.settings, name="tests") as redis:
            return not await redis.exists(f"genq:meta:{RUN}")

    def lose(self, *keys):
        for key in keys:
            self.store.delete(key)

    def objects(self):
        return [stat.key for stat in self.store.list(f"{RUN}/")]

    def part(self, number):
        return PATHS.part(number, self.suffix)

    def write_as_an_older_release(self):
        """Leave nothing in parts, indexes and format.json that says whose they are."""
        self.store.put(format_key(PATHS), codec.dumps({"suffix": self.suffix}))
        part_codec = codec_for(self.suffix)
        for number in range(3):
            key, token = self.part(number), f"{number:016x}"
            data = part_codec.encode(list(part_codec.decode(self.store.get(key))), token)
            self.store.put(key, data, metadata={WRITER: token})
            index = describe_part(number, part_codec, data)
            self.store.put(PATHS.index(number), codec.dumps(index))


@pytest.fixture
def scene(request, ask, settings, store, tmp_path):
    ours, others = tmp_path / "ours.jsonl", tmp_path / "others.jsonl"
    write(ours, ROWS)
    write(others, ROWS, change=3)
    return Scene(ask, settings, store, ours, others, getattr(request, "param", "jsonl.zst"))


# Other rows or settings on what a run left


@pytest.mark.parametrize("lost", [(), (format_key(PATHS),)])
@pytest.mark.parametrize("flags", [(), ("--temperature", 0.5), ("--samples", 2)])
async def test_a_load_without_run_json_refuses_what_is_of_other_rows_or_settings(
    scene, flags, lost
):
    await scene.load(scene.ours)
    await scene.answer()
    scene.lose(PATHS.run_json, PATHS.success, *lost)
    await scene.flush()
    before, rows = scene.objects(), scene.ours if flags else scene.others
    for more in ((), ("--dry-run",)):
        said = (await scene.load(rows, *flags, *more, code=7)).err
        assert f"{scene.store.url}/{RUN}/ holds what is not of these rows and settings" in said
        assert f"--run {RUN}-2" in said
    assert scene.objects() == before
    assert await scene.redis_is_empty()


@pytest.mark.parametrize("finished", [True, False])
async def test_the_same_rows_and_flags_put_a_lost_run_json_back(scene, finished):
    await scene.load(scene.ours, "--temperature", 0.5)
    await scene.answer()
    scene.lose(PATHS.run_json, *([] if finished else [PATHS.success]))
    await scene.flush()
    done = json.loads((await scene.load(scene.ours, "--temperature", 0.5, "--json")).out)
    if finished:
        assert done["outcome"] == "finished"
    else:
        assert (done["outcome"], done["new"], done["committed"]) == ("restored", 0, ROWS)
        await scene.answer()
    await scene.ask("verify", RUN)


async def test_a_damaged_run_json_says_what_puts_it_back(scene):
    await scene.load(scene.ours)
    await scene.answer()
    scene.store.put(PATHS.run_json, b"{}")
    said = (await scene.ask("verify", RUN, code=9)).err
    assert f"gen-producer load DATASET --run {RUN}" in said
    scene.lose(PATHS.run_json)
    await scene.load(scene.ours)
    await scene.ask("verify", RUN)


@BOTH
@pytest.mark.parametrize("junk", [b"junk", b"[]", b'{"suffix":"parquet","owner":7}'])
async def test_a_damaged_format_json_may_be_deleted(scene, junk):
    await scene.load(scene.ours)
    await scene.answer()
    whole = scene.store.get(format_key(PATHS))
    scene.store.put(format_key(PATHS), junk)
    assert "Delete it: the parts tell" in (await scene.ask("verify", RUN, code=9)).err
    scene.lose(format_key(PATHS))
    await scene.ask("verify", RUN)
    scene.lose(scene.part(2))
    await scene.ask("load", "--run", RUN)
    scene.suffix = "parquet" if scene.suffix != "parquet" else "jsonl.zst"  # a sink is told another
    await scene.answer()
    assert scene.store.get(format_key(PATHS)) == whole
    await scene.ask("verify", RUN)


# The sink and the proof


@pytest.mark.parametrize("fixed", [True, False])
async def test_parts_are_not_taken_over_from_a_run_of_other_rows(scene, fixed):
    """As it came to be where an older producer loaded the other rows."""
    await scene.load(scene.ours)
    await scene.answer()
    await scene.load(scene.others, name=OTHER)
    store = scene.store
    manifest = read_manifest(store, RunName(OTHER))
    shard = manifest.fingerprint, 0
    store.put(PATHS.prompts(*shard), store.get(OTHERS.prompts(*shard)))
    store.put(PATHS.run_json, codec.dumps(replace(manifest, run=RunName(RUN))))
    scene.lose(PATHS.success, *([] if fixed else [format_key(PATHS)]))
    await scene.flush()
    async with open_client(scene.settings, name="tests") as redis:
        runs = Runs(redis, scene.settings.limits())
        await runs.create(read_manifest(store, RunName(RUN)), store="")
        await runs.open(RunName(RUN))
    with pytest.raises(VerifyError) as refused:
        await scene.answer()
    assert "another run" in refused.value.what
    assert refused.value.fix
    assert "is a part of another run" in (await scene.ask("load", "--run", RUN, code=9)).err
    proof = prove(store, RunName(RUN))
    assert (proof.committed, proof.complete) == (0, False)
    assert proof.harm["part"] == scene.part(0)
    assert ("format" in proof.harm) == fixed


async def test_a_format_json_of_another_run_is_refused_until_it_is_deleted(scene):
    await scene.load(scene.others, name=OTHER)
    await scene.answer(OTHER)
    await scene.load(scene.ours)
    scene.store.put(format_key(PATHS), scene.store.get(format_key(OTHERS)))
    with pytest.raises(VerifyError, match="is another run's") as refused:
        await scene.answer()
    assert f"gen-producer verify {RUN}" in refused.value.fix
    said = (await scene.ask("verify", RUN, code=9)).err
    assert f"delete {scene.store.url}/{format_key(PATHS)}" in said
    scene.lose(format_key(PATHS))
    await scene.answer()


@BOTH
@pytest.mark.parametrize("with_index", [False, True])
async def test_a_part_of_another_run_over_ones_own_is_found_and_made_again(scene, with_index):
    await scene.load(scene.ours)
    await scene.answer()
    await scene.load(scene.others, name=OTHER)
    await scene.answer(OTHER)
    store, key, other = scene.store, scene.part(2), OTHERS.part(2, scene.suffix)
    store.put(key, store.get(other), metadata=store.stat(other).metadata)
    if with_index:
        store.put(PATHS.index(2), store.get(OTHERS.index(2)))
    for flags in ((), ("--quick",)):
        said = await scene.ask("verify", RUN, *flags, code=9)
        assert f"{key}: is a part of another run" in said.out
        assert "delete it and all parts behind it" in said.err
    with pytest.raises(VerifyError, match="is a part of another run"):
        committed_items(store, read_manifest(store, RunName(RUN)))
    with pytest.raises(VerifyError, match="is a part of another run"):
        list(Family.of(store, RunName(RUN)).completions())
    scene.lose(key)
    await scene.ask("load", "--run", RUN)
    await scene.answer()
    await scene.ask("verify", RUN)


@BOTH
async def test_a_part_without_metadata_tells_its_run_by_its_body(scene):
    await scene.load(scene.ours)
    await scene.answer()
    first = scene.part(0)
    owner = Owner.of(read_manifest(scene.store, RunName(RUN)))
    assert mark_of(scene.store.stat(first).metadata[WRITER]) == owner.mark
    scene.store.put(first, scene.store.get(first))
    scene.lose(PATHS.run_json, PATHS.success, format_key(PATHS))
    await scene.flush()
    await scene.load(scene.others, code=7)


# What an older release wrote


@BOTH
async def test_a_run_of_an_older_release_is_proven_and_goes_on(scene):
    await scene.load(scene.ours)
    await scene.answer()
    scene.write_as_an_older_release()
    # Whose the first parts are is not known, so nobody writes it into a format.json of theirs.
    for more in ((), (format_key(PATHS),)):
        scene.lose(scene.part(2), *more)
        await scene.flush()
        await scene.ask("load", "--run", RUN)
        await scene.answer()
        await scene.ask("verify", RUN)
        assert codec.loads(scene.store.get(format_key(PATHS))) == {"suffix": scene.suffix}


@pytest.mark.parametrize("lost", [(), (format_key(PATHS),)])
async def test_what_an_older_release_left_counts_where_the_same_prompts_are_beside_it(scene, lost):
    await scene.load(scene.ours)
    await scene.answer()
    scene.write_as_an_older_release()
    scene.lose(PATHS.run_json, PATHS.success, *lost)
    await scene.flush()
    assert "An older release wrote them" in (await scene.load(scene.others, code=7)).err
    await scene.load(scene.ours)
    await scene.answer()
    await scene.ask("verify", RUN)


# A run under another's name


@pytest.fixture
async def renamed(scene):
    """A run's folder that was copied under another name."""
    await scene.load(scene.ours)
    await scene.answer()
    for key in scene.objects():
        metadata = scene.store.stat(key).metadata
        copy = OTHER + key.removeprefix(RUN)
        scene.store.put(copy, scene.store.get(key), metadata=metadata)
    return scene


async def test_a_run_json_of_another_run_is_refused(renamed):
    for words in (
        ("verify", OTHER),
        ("load", "--run", OTHER),
        ("export", OTHER, "--to", "messages", "-"),
    ):
        said = (await renamed.ask(*words, code=9)).err
        assert f"{OTHER}/run.json is not the run {OTHER}'s: it is that of run {RUN}" in said
        assert "from a copy" in said
    renamed.lose(OTHERS.run_json)
    said = (await renamed.load(renamed.ours, name=OTHER, code=7)).err
    assert f"format.json says that it is of run {RUN}" in said


async def test_neither_sink_nor_consumer_takes_a_run_by_the_run_json_of_another(renamed):
    job = await renamed.job(RUN)
    info = replace(job.info, run=RunName(OTHER))
    with pytest.raises(VerifyError, match="is not the run other's"):
        own_manifest(renamed.store, info)
    changed = replace(job.manifest, settings=replace(job.manifest.settings, seed=7))
    renamed.store.put(PATHS.run_json, codec.dumps(changed))
    with pytest.raises(VerifyError, match="has other settings"):  # also as results are in hand
        own_manifest(renamed.store, job.info)
    catalogue = Catalogue(job.redis, job.runs, renamed.store, renamed.settings.limits())
    with pytest.raises(StoreError, match="is not the run other's") as refused:
        await catalogue._manifest(info)
    assert "from a copy" in refused.value.fix
    await job.redis.aclose()
