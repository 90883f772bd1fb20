"""A run with its children, on a real S3 server: each item once, the best completion of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common import codec
from common.errors import VerifyError
from common.family import Family, children_of, items_of_class, pack_items, parent_items
from common.ids import run_name
from common.objectstore import ObjectMissingError, RunPaths
from common.parts import SUFFIXES
from common.parts.bits import Bits
from common.parts.chain import fix_format
from consumer.sink.commit import PartWriter
from consumer.sink.recover import Ledger
from tests.support.completions import completion
from tests.support.runs import store_run

RUN = run_name("parent")


class Relatives:
    """Makes runs, their children, and what is committed of them."""

    def __init__(self, store, suffix):
        self.store, self.suffix = store, suffix
        self.runs = {}

    def run(self, name, rows, samples=1):
        self.runs[name] = store_run(self.store, run_name(name), rows=rows, samples=samples)

    def child(self, name, parent, items, *, created="2026-01-02", published=True, **fields):
        above = self.runs[parent]
        made = store_run(self.store, run_name(name), rows=len(items))
        chosen = Bits(above.items)
        chosen.add_all(items)
        lineage = {
            "created": created,
            "parent": parent,
            "parent_fingerprint": above.fingerprint,
            "parent_reason": "truncated",
            "parent_items": pack_items(chosen),
        }
        self.runs[name] = replace(made, **(lineage | fields))
        self.store.put(RunPaths(above.run).child(run_name(name)), b"{}")
        key = RunPaths(made.run).run_json
        if published:
            self.store.put(key, codec.dumps(self.runs[name]))
        else:
            self.store.delete(key)

    def commit(self, name, *parts):
        """Commit parts: of each its items with their verdicts."""
        manifest = self.runs[name]
        paths = RunPaths(manifest.run)
        suffix = fix_format(self.store, paths, self.suffix)
        writer = PartWriter(self.store, paths, Ledger(self.store, paths, manifest, suffix))
        for part in parts:
            made = [
                completion(k, verdict=verdict, content=f"{name} {k}") for k, verdict in part.items()
            ]
            writer.write(made)

    def told(self, name=RUN):
        family = Family.of(self.store, name)
        found = [
            (one.k, one.row, one.sample, one.content, one.verdict) for one in family.completions()
        ]
        assert len({k for k, *_ in found}) == len(found)
        return sorted(found)


@pytest.fixture(params=SUFFIXES)
def relatives(request, store):
    return Relatives(store, request.param)


CUT, OK = "truncated", "ok"


def test_without_children_it_is_the_run_itself(relatives):
    relatives.run(RUN, 4, samples=2)
    assert relatives.told() == []
    relatives.commit(RUN, {5: OK, 0: CUT}, {3: OK})
    assert relatives.told() == [
        (0, 0, 0, "parent 0", CUT),
        (3, 1, 1, "parent 3", OK),
        (5, 2, 1, "parent 5", OK),
    ]
    with pytest.raises(ObjectMissingError):
        Family.of(relatives.store, run_name("nothing"))


def test_a_childs_ok_completion_counts_and_no_other(relatives):
    relatives.run(RUN, 5)
    relatives.commit(RUN, {0: OK, 1: CUT, 2: CUT}, {3: CUT, 4: CUT})
    relatives.child("redo", RUN, [1, 3, 4])
    relatives.commit("redo", {2: OK, 0: CUT})  # its item 1 is still to come
    assert [row[3:] for row in relatives.told()] == [
        ("parent 0", OK),
        ("parent 1", CUT),
        ("parent 2", CUT),
        ("parent 3", CUT),
        ("redo 2", OK),
    ]
    family = Family.of(relatives.store, RUN)
    assert [part.items for part in family.parts()] == [[0, 1, 2], [3, -1], [4, -1]]
    assert [part.run for part in family.parts()] == [RUN, RUN, "redo"]


def test_children_of_children_count_and_the_nearest_wins(relatives):
    relatives.run(RUN, 3, samples=2)
    relatives.commit(RUN, dict.fromkeys(range(6), CUT))
    relatives.child("one", RUN, [1, 3, 5])
    relatives.commit("one", {0: CUT, 1: OK, 2: CUT})
    relatives.child("two", "one", [0, 2])
    relatives.commit("two", {1: OK, 0: CUT})
    relatives.child("three", "two", [0])
    relatives.commit("three", {0: OK})
    # Two commands at one moment may give an item to two children: the older one's counts.
    relatives.child("late", RUN, [3, 4], created="2026-02-01")
    relatives.commit("late", {0: OK, 1: OK})
    assert [(k, row, sample, content) for k, row, sample, content, _ in relatives.told()] == [
        (0, 0, 0, "parent 0"),
        (1, 0, 1, "three 0"),
        (2, 1, 0, "parent 2"),
        (3, 1, 1, "one 1"),
        (4, 2, 0, "late 1"),
        (5, 2, 1, "two 1"),
    ]
    family = Family.of(relatives.store, RUN)
    assert [child.run for child in family.children] == ["one", "two", "three", "late"]
    assert [row[3] for row in relatives.told("one")] == ["three 0", "one 1", "two 1"]


def test_what_only_seems_to_be_a_child_is_left_out(relatives):
    relatives.run(RUN, 2)
    relatives.commit(RUN, {0: CUT, 1: CUT})
    relatives.child("killed", RUN, [0], published=False)
    relatives.child("others", RUN, [0], parent_fingerprint="of an earlier run of that name")
    relatives.store.put(f"{RUN}/children/No Run!.json", b"{}")
    assert children_of(relatives.store, relatives.runs[RUN]) == []
    assert [row[3] for row in relatives.told()] == ["parent 0", "parent 1"]


def test_items_of_a_class_are_found_in_mixed_and_in_pure_parts(relatives):
    relatives.run(RUN, 6)
    relatives.commit(RUN, {0: OK, 4: CUT}, {1: OK, 2: OK}, {3: CUT, 5: CUT})
    found = items_of_class(relatives.store, relatives.runs[RUN], CUT)
    assert list(found) == [4, 3, 5]


@pytest.mark.parametrize("items", ["", "!", "KLUv/SAAAQAA"])
def test_a_damaged_list_of_items_is_told(relatives, items):
    relatives.run(RUN, 2)
    relatives.child("odd", RUN, [0], parent_items=items)
    with pytest.raises(VerifyError, match=r"odd/run.json is damaged") as refused:
        Family.of(relatives.store, RUN)
    note = RunPaths(RUN).child(run_name("odd"))
    assert f"delete {note}" in refused.value.fix
    relatives.store.delete(note)
    assert Family.of(relatives.store, RUN).children == []


def test_a_hundred_thousand_items_take_little_room():
    every_third = Bits(100_000)
    every_third.add_all(range(0, 100_000, 3))
    packed = pack_items(every_third)
    assert len(packed) < 1_000
    child = replace(_child(every_third), parent_items=packed)
    assert list(parent_items(child, 100_000)) == list(range(0, 100_000, 3))


def _child(items):
    from tests.support.runs import run_manifest  # noqa: PLC0415 - of this test only

    return replace(run_manifest(run_name("child"), rows=0), rows=len(items))
