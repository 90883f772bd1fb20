"""The trainer's data set: a real DataLoader with several workers, over parts on the S3 server."""

from __future__ import annotations

import subprocess
import sys

import pytest

from common.errors import ConflictError, UsageError, VerifyError
from common.objectstore import ObjectMissingError, RunPaths
from common.parts import SUFFIXES
from common.records import Turn, Usage
from common.settings import load_settings
from tests.support.committed import add_parts, store_child, store_committed
from tests.support.completions import completion
from tests.support.trainer import need_torch

need_torch()

import torch  # noqa: E402 - only where it is there
from torch.utils.data import DataLoader  # noqa: E402

from common.training import CompletionDataset  # noqa: E402

FORMATS = pytest.mark.parametrize("suffix", SUFFIXES)
pytestmark = [
    # Python 3.12 and newer warn of fork() where threads live; torch forks its workers until 3.14.
    pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # few cores
]
SIZES = (7, 1, 12, 5, 9)  # rows of the parts: uneven, one of a single row
ROWS = sum(SIZES)


def answered(k, told=None, **more):
    """A completion whose ids tell the item, of a length of its own."""
    told = k if told is None else told
    return completion(k, input_ids=[1, 1000 + told], output_ids=[2] * (k % 5 + 1), **more)


def in_parts(completions, sizes=SIZES):
    left = list(completions)
    return [[left.pop(0) for _ in range(rows)] for rows in sizes]


@pytest.fixture
def given(store_settings):
    return load_settings(**store_settings)


def item_of(sample):
    return int(sample["input_ids"][1]) - 1000


def items(loader):
    return [item_of(sample) for sample in loader]


@FORMATS
def test_no_overlap_and_no_gap_over_ranks_and_workers(store, given, suffix):
    store_committed(store, "r", in_parts(map(answered, range(ROWS))), suffix=suffix)
    seen = []
    for rank in range(3):
        dataset = CompletionDataset("r", settings=given, shuffle_seed=1, rank=rank, world_size=3)
        mine = items(DataLoader(dataset, batch_size=None, num_workers=2))
        assert ROWS // 3 <= len(mine) <= ROWS // 3 + 1
        seen += mine
    assert sorted(seen) == list(range(ROWS))


def test_samples_are_int64_tensors_of_one_length_with_the_answer_masked_in(store, given):
    store_committed(store, "r", [[answered(4)]])
    (sample,) = CompletionDataset("r", settings=given)
    assert {name: value.dtype for name, value in sample.items()} == dict.fromkeys(
        ("input_ids", "attention_mask", "loss_mask"), torch.int64
    )
    assert sample["input_ids"].tolist() == [1, 1004, 2, 2, 2, 2, 2]
    assert sample["attention_mask"].tolist() == [1] * 7
    assert sample["loss_mask"].tolist() == [0, 0, 1, 1, 1, 1, 1]


def test_a_batch_is_padded_with_zeros_in_all_three(store, given):
    store_committed(store, "r", [[answered(0), answered(2)]])
    (batch,) = CompletionDataset("r", settings=given).loader(batch_size=2)
    assert batch["input_ids"].tolist() == [[1, 1000, 2, 0, 0], [1, 1002, 2, 2, 2]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1] * 5]
    assert batch["loss_mask"].tolist() == [[0, 0, 1, 0, 0], [0, 0, 1, 1, 1]]


def test_seed_and_epoch_order_the_parts_and_nothing_else(store, given):
    store_committed(store, "r", in_parts(map(answered, range(ROWS))))
    plain = CompletionDataset("r", settings=given)
    assert items(plain) == list(range(ROWS))
    dataset = CompletionDataset("r", settings=given, shuffle_seed=3)
    first, again = items(dataset), items(dataset)
    dataset.set_epoch(1)
    second = items(dataset)
    assert first == again != second
    next(iter(dataset))
    later = CompletionDataset("r", settings=given)
    later.load_state_dict(dataset.state_dict())
    later.set_epoch(1)  # the state's: nothing is begun anew
    assert items(later) == second[1:]
    later.load_state_dict(dataset.state_dict())
    later.set_epoch(2)
    assert len(items(later)) == ROWS
    assert sorted(first) == sorted(second) == list(range(ROWS))


@pytest.mark.parametrize("workers", [(0, 2), (2, 0), (2, 3)])
def test_a_state_goes_on_with_exactly_the_rest(store, given, workers):
    """Part 1 is all truncated, and every seventh other row has two turns, two examples."""
    store_committed(store, "r", in_parts(mixed(k) for k in range(ROWS)))

    def fresh():
        return CompletionDataset("r", settings=given, shuffle_seed=5)

    whole = sorted(examples(fresh()))
    assert len(whole) == ROWS - 1 + 4
    loader = fresh().loader(batch_size=3, num_workers=workers[0])
    taken = []
    for batch, _ in zip(loader, range(4), strict=False):
        taken += rows_of(batch)
        state = loader.state_dict()
    later = fresh().loader(batch_size=3, num_workers=workers[1])
    later.load_state_dict(state)
    rest = [row for batch in later for row in rows_of(batch)]
    assert len(taken) == 12
    assert sorted(taken + rest) == whole
    assert sorted(row for batch in later for row in rows_of(batch)) == whole, "a new epoch is whole"


def mixed(k):
    if k == SIZES[0]:
        return answered(k, verdict="truncated")
    if k % 7:
        return answered(k)
    early = Turn("a", None, [1, 2000 + k], [5], "stop", "ok", Usage(2, 1), 7)
    return answered(k, turns=[early])


def examples(dataset):
    return [tuple(sample["input_ids"].tolist()) for sample in dataset]


def rows_of(batch):
    lengths = batch["attention_mask"].sum(1).tolist()
    return [tuple(row[:n].tolist()) for row, n in zip(batch["input_ids"], lengths, strict=True)]


@pytest.mark.filterwarnings("ignore:.set_vital:UserWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_torchdata_s_loader_saves_and_loads_the_state_by_itself(store, given, workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    store_committed(store, "r", in_parts(mixed(k) for k in range(ROWS)))

    def fresh():
        dataset = CompletionDataset("r", settings=given, shuffle_seed=5)
        return stateful.StatefulDataLoader(dataset, batch_size=None, num_workers=workers)

    whole = sorted(examples(fresh()))
    loader = fresh()
    taken = []
    for sample in loader:
        taken.append(tuple(sample["input_ids"].tolist()))
        if len(taken) == 11:
            state = loader.state_dict()
            break
    later = fresh()
    later.load_state_dict(state)
    assert sorted(taken + examples(later)) == whole


def test_a_state_of_single_samples_goes_on_within_a_conversation(store, given):
    store_committed(store, "r", [[mixed(0), mixed(1)]])
    dataset = CompletionDataset("r", settings=given)
    first = next(iter(dataset))["input_ids"].tolist()
    later = CompletionDataset("r", settings=given)
    later.load_state_dict(dataset.state_dict())
    assert (first[1], [row[1] for row in examples(later)]) == (2000, [1000, 1001])


def test_states_of_all_ranks_go_on_with_another_number_of_ranks(store, given):
    store_committed(store, "r", in_parts(map(answered, range(ROWS))))

    def ranks(count):
        return [
            CompletionDataset("r", settings=given, shuffle_seed=2, rank=n, world_size=count)
            for n in range(count)
        ]

    taken, states = [], []
    for dataset in ranks(2):
        loader = dataset.loader(batch_size=4, num_workers=0)
        taken += [1000 + k for k in (row[1] - 1000 for row in rows_of(next(iter(loader))))]
        states.append(loader.state_dict())
    for dataset in ranks(3):
        with pytest.raises(UsageError, match="of 2"):
            dataset.load_state_dict(states[0])
        dataset.load_state_dict(states)
        taken += [1000 + k for k in items(dataset)]
    assert sorted(taken) == list(range(1000, 1000 + ROWS))


def test_verdicts_and_lengths_are_as_asked(store, given):
    kept = [answered(0), answered(1, verdict="truncated"), answered(4), answered(3)]
    store_committed(store, "r", [kept])

    def lengths(**options):
        made = CompletionDataset("r", settings=given, **options)
        return [len(sample["input_ids"]) for sample in made]

    assert lengths() == [3, 7, 6]
    assert lengths(verdicts=("ok", "truncated")) == [3, 4, 7, 6]
    assert lengths(max_tokens=6, too_long="skip") == [3, 6]
    assert lengths(max_tokens=6, too_long="cut") == [3, 6, 6]
    assert lengths(max_tokens=2, too_long="cut") == [], "nothing to learn is left"
    for wrong in ({"max_tokens": 6}, {"too_long": "cut"}, {"verdicts": ("good",)}, {"rank": 1}):
        with pytest.raises(UsageError):
            lengths(**wrong)


def test_several_runs_are_read_together_and_a_missing_one_is_named(store, given):
    store_committed(store, "a", [[answered(0)]])
    store_committed(store, "b", [[answered(1)], [answered(2)]], suffix="jsonl.zst")
    assert sorted(items(CompletionDataset(["a", "b"], settings=given))) == [0, 1, 2]
    with pytest.raises(UsageError, match="twice"):
        CompletionDataset(["a", "a"], settings=given)
    with pytest.raises(ObjectMissingError):
        CompletionDataset("c", settings=given)


@FORMATS
def test_a_child_run_s_completions_are_taken_where_they_are_ok(store, given, suffix):
    """Items 1 and 3 were cut off; 1 is whole now, 3 is cut off again."""
    kept = [answered(k, verdict="truncated" if k % 2 else "ok") for k in range(4)]
    parent = store_committed(store, "r", [kept[:2], kept[2:]], suffix=suffix)
    redone = [answered(0, 500), answered(1, 501, verdict="truncated")]
    store_child(store, parent, "r-more", [1, 3], [redone], suffix=suffix)
    dataset = CompletionDataset("r", settings=given)
    assert sorted(items(DataLoader(dataset, batch_size=None, num_workers=2))) == [0, 2, 500]
    both = CompletionDataset("r", settings=given, verdicts=("ok", "truncated"))
    assert items(both) == [0, 2, 3, 500]
    with pytest.raises(UsageError, match="twice"):
        CompletionDataset(["r", "r-more"], settings=given)


def test_a_state_is_refused_once_a_child_run_has_taken_its_completions(store, given):
    parent = store_committed(store, "r", [[answered(0), answered(1, verdict="truncated")]])
    state = CompletionDataset("r", settings=given).state_dict()
    store_child(store, parent, "r-more", [1], [[answered(0, 500)]])
    later = CompletionDataset("r", settings=given)
    with pytest.raises(ConflictError, match="not those of the state"):
        later.load_state_dict(state)


def test_of_a_run_that_goes_on_all_ranks_take_the_same_parts(store, given):
    parts = in_parts(map(answered, range(ROWS)))
    store_committed(store, "r", parts[:3], unfinished=ROWS - 20)
    with pytest.raises(ConflictError, match="not finished: r"):
        CompletionDataset("r", settings=given, rank=0, world_size=2)
    early = [
        CompletionDataset("r", settings=given, rank=n, world_size=2, parts=2) for n in range(2)
    ]
    dataset = CompletionDataset("r", settings=given)
    first = item_of(next(iter(dataset)))
    state = dataset.state_dict()
    add_parts(store, "r", parts[3:], start=3)
    assert sorted(k for one in early for k in items(one)) == list(range(8))
    later = CompletionDataset("r", settings=given)
    assert len(items(later)) == ROWS
    later.load_state_dict(state)
    assert [first, *items(later)] == list(range(20)), "what came since is not in the state"


def test_parts_that_are_not_there_yet_are_refused_not_left_out(store, given):
    parts = in_parts(map(answered, range(ROWS)))
    store_committed(store, "r", parts[:3], unfinished=ROWS - 20)
    store_committed(store, "whole", [[answered(0)]])
    for world_size in (1, 2):
        with pytest.raises(ConflictError, match="Run r has 3 parts, not 4") as refused:
            CompletionDataset(
                ["r", "whole"], settings=given, rank=0, world_size=world_size, parts=4
            )
        assert "parts=3" in refused.value.fix
    add_parts(store, "r", parts[3:4], start=3)
    both = CompletionDataset(["r", "whole"], settings=given, rank=0, world_size=1, parts=4)
    assert len(items(both)) == 25 + 1, "a finished run is whole with fewer"
    store_committed(store, "fresh", [], unfinished=3)
    with pytest.raises(ConflictError, match="Run fresh has 0 parts, not 1"):
        CompletionDataset("fresh", settings=given, parts=1)


def test_a_damaged_part_is_named_by_a_worker(store, given):
    store_committed(store, "r", [[answered(0)]])
    dataset = CompletionDataset("r", settings=given)
    store.put(RunPaths("r").part(0, "parquet"), b"PAR1 no more")
    with pytest.raises(VerifyError, match="part-00000000"):
        items(DataLoader(dataset, batch_size=None, num_workers=1))


def test_ranks_come_from_torchrun_where_nobody_says_otherwise(store, given, monkeypatch):
    store_committed(store, "r", [[answered(0), answered(1)]])
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert items(CompletionDataset("r", settings=given)) == [1]


def test_without_torch_the_extra_is_named_and_nothing_else_needs_it():
    program = """
import sys
sys.modules["torch"] = None
import common.corpus, common.examples, producer.cli, producer.export.command, consumer.cli
assert not [name for name in sys.modules if name.startswith("torch.")]
from common.errors import UsageError
try:
    import common.training
except UsageError as error:
    print(error.fix)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    assert "pip install '.[train]'" in done.stdout


@pytest.mark.parametrize("gone", [0, 2, len(SIZES) - 1])
def test_a_run_that_lost_parts_is_no_training_set(store, given, gone):
    """What is left of it would be trained on as if it were the whole."""
    store_committed(store, "r", in_parts(map(answered, range(ROWS))))
    store.delete(RunPaths("r").part(gone, "parquet"))
    with pytest.raises(VerifyError) as refusal:
        CompletionDataset("r", settings=given)
    assert "gen-producer " in refusal.value.fix


def test_of_a_run_that_goes_on_what_there_is_is_the_set(store, given):
    store_committed(store, "r", in_parts(map(answered, range(ROWS))), unfinished=3)
    assert len(list(CompletionDataset("r", settings=given))) == ROWS


def test_parts_of_a_child_that_count_nothing_are_not_taken_for_lost(store, given):
    parent = store_committed(store, "r", in_parts(map(answered, range(ROWS))))
    store_child(store, parent, "b", [1], [[answered(0, told=61)]])
    store_child(store, parent, "c", [0, 1], [[answered(0, told=50)], [answered(1, told=51)]])
    there = sorted(item_of(one) for one in CompletionDataset("r", settings=given))
    assert there == [*range(2, ROWS), 50, 61]
    store.delete(RunPaths("c").part(1, "parquet"))
    with pytest.raises(VerifyError, match="1 completions of run c are gone"):
        CompletionDataset("r", settings=given)
