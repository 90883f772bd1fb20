"""The whole pipeline under random faults; then a drain, and an audit that trusts nobody.

    python -m tests.faults.chaos --seed 1 --items 5000 [--faults 40] [--runs 20] [--record FILE]

Real parts throughout: producer, three consumers (the stand-in where SGLang would be), two sinks,
a Valkey that writes all to disk, an S3 server. The seed gives the schedule of faults, and gives it
again. Exits with 1 if an item was lost or stored twice, if a sample of the counts did not add up,
if storage is not proved, if a service ended as it should not, or if anything outlived the run.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet

from common.codec import loads
from common.errors import StoreError
from common.ids import RunName
from common.objectstore import RunPaths
from common.prove import prove
from consumer.stopping import end_tasks
from tests.faults.acts import STOPPED, Acts
from tests.faults.records import append_chaos
from tests.faults.schedule import CONSUMERS, SERVICES, Fault, draw, kills_of_the_load
from tests.faults.stage import SINK_SECONDS, Stage, stage
from tests.faults.watch import Looker, Sampler
from tests.support import servers
from tests.support.crew import Crew
from tests.support.forge import running_forge
from tests.support.servers import eventually
from tests.support.tiny_tokenizer import build_model_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from common.objectstore import ObjectStore
    from tests.support.forge import Forge

PROGRAMS = ("gen-producer", "gen-consumer", "gen-sink")
RUN = RunName("chaos")
POISON_EVERY = 400  # rows; such a one is longer than the engines take
PART_ROWS = 60
RUNNING, ANSWER_TOKENS = 8, 24  # of each engine
FAULT_SECONDS = 1.0  # of generation for each fault
STILL_SECONDS = 180.0  # without an answer more: it hangs
# Of each life of an engine: the first answers are empty, aborted or not JSON.
ENGINE_FAULTS = {"empty_answers": 2, "abort_answers": 2, "answer": "not_json", "answer_count": 1}
DEAD_FOR = {"too_long", "empty"}  # anything else that is dead-lettered was lost by us


@dataclass
class Report:
    """What a run was put through, and what became of its items."""

    seed: int
    items: int
    faults: int
    kinds: int
    seconds: float = 0.0
    committed: int = 0
    dead: int = 0
    lost: int = 0
    doubled: int = 0
    samples: int = 0
    restarts: int = 0
    waste: float = 0.0  # tokens that the queue knows to be thrown away, as a share of all
    problems: list[str] = field(default_factory=list)


@dataclass
class Play:
    """One run of the system under faults."""

    seed: int
    items: int
    stage: Stage
    crew: Crew
    model: str
    seconds: float  # that the answers take, all in all, if nothing goes wrong
    say: Callable[[str], None]

    def load(self) -> Sequence[str]:
        rows = str(self.stage.folder / "rows.jsonl")
        return ("gen-producer", "load", rows, "--run", RUN, "--model", self.model, "--quiet")

    def start(self, name: str) -> None:
        if name in CONSUMERS:
            pace = self.seconds * RUNNING * len(CONSUMERS) / self.items / ANSWER_TOKENS
            engine = ("--token-seconds", f"{pace:.4f}", "--answer-tokens", str(ANSWER_TOKENS))
            engine += ("--faults", json.dumps(ENGINE_FAULTS))
            flags = ("--model", self.model, "--max-running", str(RUNNING), "--", *engine)
            self.crew.start(name, "gen-consumer", *flags, **self.stage.env_of(name))
        else:
            flags = ("--rows", str(PART_ROWS), "--seconds", str(SINK_SECONDS))
            self.crew.start(name, "gen-sink", *flags, **self.stage.env_of(name))

    def write_rows(self) -> None:
        with (self.stage.folder / "rows.jsonl").open("w") as file:
            for i in range(self.items):
                text = f"question {i}" + " and on" * (1000 if i % POISON_EVERY == 7 else 0)
                file.write(json.dumps({"id": f"r{i}", "prompt": text}) + "\n")

    async def load_in_spite_of_kills(self) -> None:
        """Load; the first tries are killed."""
        for n, seconds in enumerate(kills_of_the_load(self.seed, 2)):
            killed = self.crew.start(f"load-{n}", *self.load(), GENQ_REDIS_URL=self.redis_url)
            await asyncio.sleep(seconds)  # lasts: a load, until it is killed
            killed.signal(9)
            await killed.ended()
        last = self.crew.start("load", *self.load(), GENQ_REDIS_URL=self.redis_url)
        assert await last.ended() == 0, last.last_words()

    @property
    def redis_url(self) -> str:
        return self.stage.redis.url

    async def perform(self, schedule: Sequence[Fault]) -> Report:
        """Load, run, break, heal, drain, audit."""
        began = time.monotonic()
        report = Report(self.seed, self.items, len(schedule), len({f.kind for f in schedule}))
        sampler = Sampler(self.redis_url, RUN)
        looker = Looker(self.redis_url, RUN, sampler.still)
        acts = Acts(self.stage, self.crew, looker, self.start, self.load)
        self.write_rows()
        try:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(sampler.watch())
                await self.load_in_spite_of_kills()
                for name in SERVICES:
                    self.start(name)
                looking = group.create_task(looker.watch())
                nursing = group.create_task(acts.nurse())
                await self._break(schedule, acts, sampler)
                looker.enough.set()
                await looking
                await self._drain(sampler)
                await end_tasks([watching, nursing])
        except* Exception as trouble:  # noqa: BLE001 - the audit comes whatever happened
            report.problems += [repr(error) for error in trouble.exceptions]
            report.problems.append(self.crew.last_words())
        codes = await self.crew.end()
        acts.problems += [f"{n} ended with {c}" for n, c in codes.items() if c not in STOPPED]
        report.seconds = time.monotonic() - began
        await self._audit(report, sampler, acts)
        return report

    async def _break(self, schedule: Sequence[Fault], acts: Acts, sampler: Sampler) -> None:
        async with asyncio.TaskGroup() as group:
            for fault in schedule:
                await self._reached(sampler, fault.at)
                self.say(f"{time.monotonic() - sampler.began:6.1f} s  {fault}")
                group.create_task(acts.act(fault))

    async def _reached(self, sampler: Sampler, share: float) -> None:
        """Wait until so many items are answered; some more have to be all the time."""
        while sampler.progress < share:
            before = sampler.progress
            await eventually(
                lambda before=before: sampler.progress > min(before, share), STILL_SECONDS
            )

    async def _drain(self, sampler: Sampler) -> None:
        """Wait for the end of the run: every item at its place, and _SUCCESS."""
        self.say(f"{time.monotonic() - sampler.began:6.1f} s  all healed; it drains")
        await self._reached(sampler, 0.97)
        success = RunPaths(RUN).success

        async def over() -> bool:
            counts = sampler.newest
            closed = counts is not None and counts.state == "closed" and not counts.open
            return closed and await asyncio.to_thread(self.stage.store.stat, success) is not None

        try:
            await eventually(over, STILL_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"it does not end: {sampler.newest}") from error

    async def _audit(self, report: Report, sampler: Sampler, acts: Acts) -> None:
        report.samples, report.restarts = sampler.samples, acts.restarts
        report.problems += sampler.problems + acts.problems
        try:
            await eventually(lambda: not self.crew.leftovers(), 15)
        except AssertionError:
            report.problems += [f"left behind: {text}" for text in self.crew.leftovers()]
        for member in self.crew.members.values():
            log = member.last_words(1 << 24)
            if "Traceback" in log or '"bug:' in log:
                report.problems.append(f"{member.name} has met a bug:\n{_around_a_bug(log)}")
        count_items(self.stage.store, report)
        try:
            proof = prove(self.stage.store, RUN)
        except StoreError as error:
            report.problems.append(str(error))
        else:
            report.problems += proof.problems
        if newest := sampler.newest:
            spent = newest.completion_tokens + newest.wasted_tokens
            report.waste = newest.wasted_tokens / spent if spent else 0.0
        if report.lost or report.doubled:
            report.problems.append(f"{report.lost} items lost, {report.doubled} doubled")


def _around_a_bug(log: str) -> str:
    at = max(log.find("Traceback"), log.find('"bug:'))
    return log[max(0, at - 1000) : at + 3000]


def count_items(store: ObjectStore, report: Report) -> None:
    """Count what storage holds without any code that the services use to know it."""
    found: Counter[int] = Counter()
    paths = RunPaths(RUN)
    for part in store.list(paths.data_prefix):
        table = pyarrow.parquet.read_table(
            io.BytesIO(store.get(part.key)), columns=["k", "row_id", "messages"]
        )
        for row in table.to_pylist():
            found[row["k"]] += 1
            right = f"question {row['k']}"
            if row["row_id"] != f"r{row['k']}" or row["messages"][0]["content"] != right:
                report.problems.append(f"item {row['k']} holds the answer to another row")
    dead: dict[int, str] = {}
    if store.stat(paths.failed):
        for line in store.get(paths.failed).splitlines():
            letter = loads(line)
            dead[letter["k"]] = letter["verdict"]
            if letter["verdict"] not in DEAD_FOR:
                report.problems.append(f"dead-lettered without cause: {letter}")
    report.committed, report.dead = len(found), len(dead)
    report.doubled = sum(n - 1 for n in found.values()) + len(found.keys() & dead.keys())
    report.lost = len(set(range(report.items)) - found.keys() - dead.keys())


async def run_chaos(
    seed: int,
    items: int,
    faults: int,
    *,
    forge: Forge,
    s3: servers.embedded.S3Server,
    folder: Path,
    say: Callable[[str], None],
) -> Report:
    """Run once, in an empty folder."""
    with stage(folder, s3, SERVICES) as set_up:
        crew = Crew(forge, set_up.env, folder / "crew")
        # Its engines take less than it could: `load` passes what they refuse.
        model = str(build_model_folder(folder / "model", context=1 << 20))
        play = Play(seed, items, set_up, crew, model, faults * FAULT_SECONDS, say)
        return await play.perform(draw(seed, faults))


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1, help="so many seeds, one after the other")
    parser.add_argument("--items", type=int, default=5000)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--record", type=Path, help="append a line for each run to this file")
    args = parser.parse_args()
    problems = 0
    with running_forge(*PROGRAMS) as forge, servers.s3_server() as s3:
        for seed in range(args.seed, args.seed + args.runs):
            _say(f"seed {seed}: {args.items} items, {args.faults} faults")
            with tempfile.TemporaryDirectory(prefix="genq-chaos-") as folder:
                run = run_chaos(
                    *(seed, args.items, args.faults),
                    forge=forge,
                    s3=s3,
                    folder=Path(folder),
                    say=_say,
                )
                report = asyncio.run(run)
            _tell(report)
            problems += len(report.problems)
            if args.record:
                append_chaos(args.record, report)
    return 1 if problems else 0


def _say(line: str) -> None:
    print(line, flush=True)


def _tell(report: Report) -> None:
    for problem in report.problems:
        _say(f"PROBLEM {problem}")
    _say(
        f"seed {report.seed}: {report.seconds:.0f} s, {report.committed} committed,"
        f" {report.dead} dead-lettered, {report.lost} lost, {report.doubled} doubled,"
        f" {report.samples} samples, {len(report.problems)} problems"
    )


if __name__ == "__main__":
    sys.exit(main())
