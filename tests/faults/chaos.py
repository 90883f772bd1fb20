"""The whole pipeline under random faults; then a drain, and an audit that trusts nobody.

    python -m tests.faults.chaos --seed 1 --items 5000 [--faults 40] [--runs 20] [--record FILE]

Real parts throughout: producer, three consumers (the stand-in where SGLang would be), two sinks,
a Valkey that writes all to disk, an S3 server; each service is its own user of deploy/users.acl.
The seed gives the schedule of faults, and gives it again. Exits with 1 if an item was lost or
stored twice, if a sample of the counts did not add up, if storage is not proved, if a service ended
as it should not, if the ACL denied anything, if RQ's tools failed or never did their work, if a log
shows a secret, or if anything outlived the run. ``--short`` plays a run of `make test`.
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
from tests.faults.schedule import CONSUMERS, SERVICES, Fault, deal, draw, kills_of_the_load
from tests.faults.stage import SINK_SECONDS, Stage, stage
from tests.faults.watch import Looker, Sampler
from tests.support import servers
from tests.support.crew import Crew
from tests.support.servers import eventually
from tests.support.tiny_tokenizer import build_model_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from common.objectstore import ObjectStore
    from tests.support.crew import Member

RUN = RunName("chaos")
CREW = "crew"  # the folder of the services
POISON_EVERY = 400  # rows; such a one is longer than the engines take
PART_ROWS = 60
ITEMS, SHORT_ITEMS = 5000, 200
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
    looks: int = 0
    requeued: int = 0  # items, by RQ's own code
    commands: int = 0  # of RQ's
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

    def start_load(self, name: str) -> Member:
        return self.crew.start(name, *self.load(), **self.stage.env_of("producer"))

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
            killed = self.start_load(f"load-{n}")
            await asyncio.sleep(seconds)  # lasts: a load, until it is killed
            killed.signal(9)
            await killed.ended()
        last = self.start_load("load")
        assert await last.ended() == 0, last.last_words()

    async def perform(self, schedule: Sequence[Fault]) -> Report:
        """Load, run, break, heal, drain, audit."""
        began = time.monotonic()
        report = Report(self.seed, self.items, len(schedule), len({f.kind for f in schedule}))
        sampler = Sampler(self.stage.redis.url, RUN)
        looker = Looker(self.stage.redis, RUN, self.items, sampler.still)
        acts = Acts(self.stage, self.crew, looker, self.start, self.start_load)
        self.write_rows()
        try:
            async with asyncio.TaskGroup() as group:
                beside = [group.create_task(sampler.watch())]
                try:
                    await self.load_in_spite_of_kills()
                    for name in SERVICES:
                        self.start(name)
                    looking = group.create_task(looker.watch())
                    beside += [looking, group.create_task(acts.nurse())]
                    await self._break(schedule, acts, sampler)
                    looker.enough.set()
                    await looking
                    await self._drain(sampler)
                finally:  # the group would cancel once, which the Redis client may swallow
                    await end_tasks(beside)
        except* Exception as trouble:  # noqa: BLE001 - the audit comes whatever happened
            report.problems += [repr(error) for error in trouble.exceptions]
            report.problems.append(self.crew.last_words())
        codes = await self.crew.end()
        acts.problems += [f"{n} ended with {c}" for n, c in codes.items() if c not in STOPPED]
        report.seconds = time.monotonic() - began
        report.looks, report.requeued = looker.looks, looker.requeued
        report.commands = looker.commands.total()
        report.problems += looker.problems
        report.problems += looker.missing(commands="rq.cli" in {f.kind for f in schedule})
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
        report.problems += [f"the ACL denied: {what}" for what in sorted(sampler.denied)]
        report.problems += secrets_shown(self.stage.folder / CREW, self.stage.secrets())
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


def secrets_shown(folder: Path, secrets: Sequence[str]) -> list[str]:
    """Return the files of the services, logs and state folders, that hold a secret."""
    assert all(secrets)
    return [
        f"{file.relative_to(folder)} shows a secret"
        for file in folder.rglob("*")
        if file.is_file() and any(secret.encode() in file.read_bytes() for secret in secrets)
    ]


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
    schedule: Sequence[Fault],
    *,
    s3: servers.embedded.S3Server,
    folder: Path,
    say: Callable[[str], None],
) -> Report:
    """Run once, in an empty folder."""
    with stage(folder, s3, SERVICES) as set_up:
        crew = Crew(set_up.env, folder / CREW)
        # Its engines take less than it could: `load` passes what they refuse.
        model = str(build_model_folder(folder / "model", context=1 << 20))
        play = Play(seed, items, set_up, crew, model, len(schedule) * FAULT_SECONDS, say)
        return await play.perform(schedule)


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1, help="so many seeds, one after the other")
    parser.add_argument("--items", type=int, help=f"{ITEMS}, of a short run {SHORT_ITEMS}")
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--short", action="store_true", help="as `make test` does, a third of all")
    parser.add_argument("--record", type=Path, help="append a line for each run to this file")
    args = parser.parse_args()
    problems = 0
    with servers.s3_server() as s3:
        for seed in range(args.seed, args.seed + args.runs):
            schedule = deal(seed) if args.short else draw(seed, args.faults)
            items = args.items or (SHORT_ITEMS if args.short else ITEMS)
            _say(f"seed {seed}: {items} items, {len(schedule)} faults")
            with tempfile.TemporaryDirectory(prefix="genq-chaos-") as folder:
                run = run_chaos(
                    *(seed, items, schedule),
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
        f" {report.samples} samples, {report.looks} looks, {report.requeued} requeued,"
        f" {report.commands} commands of rq, {len(report.problems)} problems"
    )


if __name__ == "__main__":
    sys.exit(main())
