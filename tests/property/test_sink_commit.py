"""The commit against a store that fails, two sinks that overtake each other, and kills anywhere.

Whatever happens: ``data/`` holds an item at most once, numbers have no gaps, and an entry is
acknowledged only if its item is committed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from common.errors import StoreError
from common.ids import RunName
from common.objectstore import RunPaths
from common.parts import codec_for
from common.parts.chain import part_number
from common.prove import committed_items
from consumer.sink.commit import PartWriter
from consumer.sink.recover import Ledger
from tests.support.completions import completion
from tests.support.modelstore import Died, ModelStore
from tests.support.runs import run_manifest

ITEMS = 12
SUFFIX = "jsonl.zst"
PATHS = RunPaths(RunName("machine"))
CODEC = codec_for(SUFFIX)

# What happens at the n-th call that a commit makes of the store.
plans = st.dictionaries(
    st.integers(0, 9),
    st.sampled_from(["fails before", "fails after", "dies before", "dies after", "overtaken"]),
    max_size=3,
)
sinks = st.sampled_from([0, 1])


@dataclass
class Sink:
    """One sink process: what it has in memory is gone when it dies."""

    store: ModelStore
    folder: Path
    ledger: Ledger = field(init=False)
    writer: PartWriter = field(init=False)
    held: dict[int, int] = field(default_factory=dict)  # entry -> item

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.store, PATHS, run_manifest(PATHS.run, rows=ITEMS), SUFFIX)
        self.ledger.load(self.folder)
        self.ledger.catch_up()
        self.writer = PartWriter(self.store, PATHS, self.ledger)


class SinkMachine(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.root = Path(tempfile.mkdtemp())
        self.objects: dict = {}
        self.stream: dict[int, int] = {}  # entries that are not acknowledged
        self.produced: set[int] = set()
        self.acknowledged: set[int] = set()  # items
        self.entries = 0
        self.sinks = [self.fresh(0), self.fresh(1)]

    def fresh(self, which: int) -> Sink:
        return Sink(ModelStore(self.objects), self.root / str(which))

    @rule(items=st.lists(st.integers(0, ITEMS - 1), min_size=1, max_size=5))
    def results_arrive(self, items):
        for item in items:
            self.entries += 1
            self.stream[self.entries] = item
            self.produced.add(item)

    @rule(which=sinks, count=st.integers(1, 6))
    def read(self, which, count):
        """New entries, and those that the other one holds too, as after a claim."""
        sink = self.sinks[which]
        unread = [entry for entry in self.stream if entry not in sink.held]
        sink.held.update((entry, self.stream[entry]) for entry in unread[:count])

    @rule(which=sinks, plan=plans, death=st.sampled_from(["", "before", "after"]))
    def commit(self, which, plan, death):
        sink = self.sinks[which]
        calls = iter(range(1000))

        def fault(_call: str, moment: str) -> bool:
            if moment == "before":
                self.call = next(calls)
            planned = plan.get(self.call, "")
            if planned == f"dies {moment}":
                raise Died
            if planned == "overtaken" and moment == "before":
                self.commit_all(self.sinks[1 - which])
            return planned == f"fails {moment}"

        sink.store.fault = fault
        try:
            self.commit_all(sink, death=death)
        except Died:
            self.sinks[which] = self.fresh(which)
        else:
            sink.store.fault = lambda _call, _moment: False

    @rule(which=sinks)
    def copy_of_the_ledger_is_damaged(self, which):
        for file in (self.root / str(which)).glob("*.ledger"):
            data = bytearray(file.read_bytes())
            data[-1] ^= 1
            file.write_bytes(data)
        self.sinks[which] = self.fresh(which)

    def commit_all(self, sink: Sink, *, death: str = "") -> None:
        """What the service does with a batch: write until it worked, keep, acknowledge."""
        batch = {item: completion(item) for item in sink.held.values()}
        for _ in range(20):
            try:
                sink.writer.write(list(batch.values()))
                break
            except StoreError:
                continue
        else:
            raise AssertionError("the plan ends, so the failures do")
        sink.ledger.save(sink.folder)
        if death == "before":
            raise Died
        for entry in sink.held:
            if entry in self.stream:
                self.acknowledged.add(self.stream.pop(entry))
        sink.held.clear()
        if death == "after":
            raise Died

    def stored(self) -> Counter:
        found: Counter = Counter()
        for key, (data, _) in self.objects.items():
            if key.startswith(PATHS.data_prefix):
                found.update(CODEC.items_of(data))
        return found

    @invariant()
    def each_item_is_stored_at_most_once(self):
        assert all(count == 1 for count in self.stored().values())

    @invariant()
    def acknowledged_is_committed(self):
        assert self.acknowledged <= set(self.stored())

    @invariant()
    def parts_have_no_gaps(self):
        numbers = [part_number(PATHS, key) for key in sorted(self.objects) if "/data/" in key]
        assert numbers == [(at, SUFFIX) for at in range(len(numbers))]

    def teardown(self):
        if not hasattr(self, "root"):
            return
        sink = self.fresh(0)
        sink.held = dict(self.stream)
        self.commit_all(sink)
        assert self.stored() == Counter(self.produced)
        self.objects[f"{PATHS.run}/format.json"] = (b'{"suffix":"jsonl.zst"}', {})
        bits = committed_items(sink.store, run_manifest(PATHS.run, rows=ITEMS))
        assert {k for k in range(ITEMS) if bits[k // 8] & (0x80 >> k % 8)} == self.produced
        shutil.rmtree(self.root)


TestSinkCommit = SinkMachine.TestCase
TestSinkCommit.settings = settings(max_examples=150, stateful_step_count=25)
