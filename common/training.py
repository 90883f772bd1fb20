"""A run's committed completions for PyTorch: an IterableDataset that reads the parts on S3.

    from common.training import CompletionDataset

    dataset = CompletionDataset("drafter-1", shuffle_seed=0, max_tokens=8192, too_long="cut")
    loader = dataset.loader(batch_size=8, num_workers=4)
    for batch in loader:                  # input_ids, attention_mask, loss_mask: [batch, tokens]
        ...
        state = loader.state_dict()       # load_state_dict(state): goes on behind this batch

Needs torch: the extra ``train``. The store is that of the settings (``GENQ_STORE`` and its kin).
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

from common.corpus import read_corpus
from common.epoch import Place, Progress, from_json, merged, to_json
from common.errors import ConflictError, UsageError
from common.examples import examples_of
from common.ids import run_name
from common.installing import install
from common.records import Verdict
from common.s3 import open_store
from common.settings import load_settings
from common.training_rules import (
    STATE_VERSION,
    State,
    check_options,
    checked_rank,
    checked_states,
    goes_on,
    too_few,
)

try:
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info
except ImportError as missing:
    raise UsageError(
        "common.training needs torch, which cannot be imported.",
        why=str(missing),
        fix=f"{install('train')}, or: pip install torch",
    ) from missing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from common.epoch import Ranges
    from common.examples import Example
    from common.records import Completion
    from common.settings import Settings

Worker = tuple[int, int]  # its number, and how many there are
Sample = dict[str, Any]  # of int64 tensors


class CompletionDataset(IterableDataset):  # type: ignore[misc]  # torch is Any where it is missing
    """Committed completions as ``{"input_ids", "attention_mask", "loss_mask"}``.

    Each is an int64 tensor of shape [tokens]: what the model saw and said, exactly the engine's
    ids; ``loss_mask`` is 1 on what it said, in each generated turn (:mod:`common.examples`). A
    child run's completion is taken where it is ok, else its parent's.

    Promises: over all ranks and workers each completion that was committed when this was made is
    given once, none twice; the same seed, epoch and numbers of ranks and workers give the same
    order. Does not promise equal numbers of examples a rank: shares are equal in completions, and
    what is left out by ``verdicts`` or length differs. End an epoch by steps, or with torch's
    ``Join``. Parts are shuffled, rows within a part are not: mix those with a shuffle buffer.

    Args:
        runs: name of a run, or several.
        store: ``s3://bucket/prefix``; default: as the settings say.
        settings: default: from the environment and genq.toml.
        verdicts: classes to take.
        max_tokens: the longest example; ``too_long`` says what becomes of longer ones: ``skip``
            leaves them out, ``cut`` keeps their beginning (if anything is to be learned in it).
        shuffle_seed: None: parts in the order in which they were committed.
        epoch: orders the parts anew; see :meth:`set_epoch`.
        rank, world_size: default: torch.distributed's, where it is initialised by now; else those
            that torchrun told (RANK, WORLD_SIZE); else the only one.
        parts: take this many parts of each run, so that all ranks see the same of a run that goes
            on; default: all of a run that is finished.

    Raises:
        UsageError: an option cannot be used.
        ObjectMissingError: there is no such run.
        StoreError, VerifyError: the store gave no answer, or a part is damaged.
        ConflictError: the run goes on, and several ranks might see different parts of it; or it has
            fewer than ``parts``.
    """

    def __init__(
        self,
        runs: str | Sequence[str],
        *,
        store: str | None = None,
        settings: Settings | None = None,
        verdicts: Collection[str] = (Verdict.OK,),
        max_tokens: int | None = None,
        too_long: Literal["skip", "cut"] | None = None,
        shuffle_seed: int | None = None,
        epoch: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        parts: int | None = None,
    ) -> None:
        super().__init__()
        check_options(verdicts, max_tokens, too_long)
        names = [run_name(name) for name in ([runs] if isinstance(runs, str) else runs)]
        self.rank, self.world_size = checked_rank(rank, world_size, _known_rank())
        self.shuffle_seed, self.epoch = shuffle_seed, epoch
        self._settings = settings or load_settings()
        if store is not None:
            self._settings = self._settings.model_copy(update={"store": store})
        self._verdicts = frozenset(str(one) for one in verdicts)
        self._max_tokens, self._cut = max_tokens, too_long == "cut"
        corpus = read_corpus(open_store(self._settings), names)
        steady = () if parts is None else names
        if self.world_size > 1 and (growing := corpus.unfinished.difference(steady)):
            raise goes_on(growing)
        if parts is not None:
            there = corpus.parts()
            for name in corpus.unfinished.intersection(names):
                if there.get(name, 0) < parts:
                    raise too_few(name, there.get(name, 0), parts)
            corpus = corpus.first(dict.fromkeys(names, parts))
        self._corpus = corpus
        self._loaded: Progress | None = None
        self._loaded_for: Worker | None = None  # the only reader that may go on from there
        self._progress: Progress | None = None

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch, with another order of parts; the same number changes nothing.

        To be called before the loader's iterator is made.
        """
        if epoch != self.epoch:
            self.epoch = epoch
            self._loaded = self._loaded_for = self._progress = None

    def loader(self, **options: Any) -> ResumableLoader:
        """Return a DataLoader over this that can say where it is, with any number of workers.

        Options are those of DataLoader. Without a ``collate_fn`` samples are padded to the longest
        of their batch, with zeros in all three tensors (:func:`pad`).
        """
        return ResumableLoader(self, **options)

    def __iter__(self) -> Iterator[Sample]:
        return (sample for _, sample in self.placed())

    def placed(self) -> Iterator[tuple[Place, Sample]]:
        """Return this reader's samples, each with its place: what `iter` gives, and where it lies.

        Goes on from a state that was loaded, once; the next call begins the epoch anew.
        """
        # Not in the generator: it runs later, and a worker is a copy of what is here now.
        self._progress = self.to_give(_worker())
        self._loaded = self._loaded_for = None
        return self._samples(self._progress)

    def to_give(self, worker: Worker) -> Progress:
        """Return what a reader has to give: of what was loaded, or of the whole epoch.

        Raises:
            UsageError: another reader's state was loaded.
        """
        if self._loaded is None:
            whole = Progress([(0, self._corpus.size)])
            return whole.share(self.rank, self.world_size).share(*worker)
        if self._loaded_for is None:
            return self._loaded.share(*worker)
        if self._loaded_for != worker:
            raise UsageError(
                "The state is that of worker {} of {}, this is worker {} of {}.".format(
                    *self._loaded_for, *worker
                ),
                fix=f"Load it with num_workers={self._loaded_for[1]}.",
            )
        return self._loaded.share(0, 1)

    def load_nothing(self) -> None:
        """Begin the epoch anew at the next iteration."""
        self._loaded = self._loaded_for = None

    def state_dict(self) -> State:
        """Return where this reader is: behind the last sample that it gave.

        A reader is the process that iterates. Where that are DataLoader's workers, ask the loader
        instead: :meth:`loader`'s, or torchdata's StatefulDataLoader.
        """
        worker = get_worker_info()
        progress = self._progress or self.to_give(_worker())
        return self.state_of(progress) | {
            "worker": [worker.id, worker.num_workers] if worker else None
        }

    def state_of(self, progress: Progress) -> State:
        """Return a state that goes on with what is left in ``progress``, for the whole rank."""
        return {
            "version": STATE_VERSION,
            "rank": self.rank,
            "world_size": self.world_size,
            "shuffle_seed": self.shuffle_seed,
            "epoch": self.epoch,
            "parts": self._corpus.parts(),
            "digest": self._corpus.digest,
            "worker": None,
            **to_json(progress),
        }

    def load_state_dict(self, state: State | Sequence[State]) -> None:
        """Go on where a state was taken, at the next iteration; takes its seed and epoch.

        The number of workers may be another, but for states of torchdata's StatefulDataLoader. For
        another number of ranks give the states of all ranks, in a list, to each. Parts that were
        committed since are not in it.

        Raises:
            UsageError: it is no state of this data set, of another rank, or not all ranks' states.
            ConflictError: what is committed is no longer what the state was taken of.
        """
        states = checked_states(state, self.rank, self.world_size)
        first = states[0]
        corpus = self._corpus.first(first["parts"])
        if corpus.digest != first["digest"]:
            raise ConflictError(
                "The committed completions are not those of the state.",
                why="A child run has grown since, or the state is another run's.",
                fix="Begin a new epoch: make the data set anew, and load no state.",
            )
        self._corpus = corpus
        self.shuffle_seed, self.epoch = first["shuffle_seed"], first["epoch"]
        loaded = merged(from_json(one) for one in states)
        alone = isinstance(state, dict)
        self._loaded = loaded if alone else loaded.share(self.rank, self.world_size)
        worker = first["worker"] if alone else None
        self._loaded_for = (worker[0], worker[1]) if worker else None
        self._progress = None

    def _samples(self, progress: Progress) -> Iterator[tuple[Place, Sample]]:
        for place, example in self._examples(progress.left, progress.begun):
            progress.give(place)  # before it is handed over: the state is behind it then
            yield place, _tensors(example)

    def _examples(self, left: Ranges, begun: Mapping[int, int]) -> Iterator[tuple[Place, Example]]:
        begun = dict(begun)
        since = -1
        for at, completion in self._completions(left):
            since = max(since, _start_of(left, at))
            found = self._wanted(completion)
            for n, example in enumerate(found[begun.get(at, 0) :], start=begun.get(at, 0) + 1):
                yield Place(since, at, n, len(found)), example
                since = at + (n == len(found))

    def _wanted(self, completion: Completion) -> list[Example]:
        if completion.verdict not in self._verdicts:
            return []
        made = examples_of(completion.examples)
        limit = self._max_tokens
        if limit is None:
            return made
        if self._cut:
            made = [example.cut(limit) for example in made]
            return [example for example in made if example.learned_tokens]
        return [example for example in made if len(example.input_ids) <= limit]

    def _completions(self, left: Ranges) -> Iterator[tuple[int, Completion]]:
        """Yield completions with their positions; the next part is on its way meanwhile."""
        store = open_store(self._settings)  # in each process its own connections
        order = self._corpus.ordered(self.shuffle_seed, self.epoch)
        reads = list(order.reads(left))
        with ThreadPoolExecutor(1) as ahead:
            coming = [ahead.submit(store.get, piece.key) for piece, *_ in reads[:1]]
            for n, (piece, first, low, high) in enumerate(reads):
                data = coming.pop().result()
                coming += [ahead.submit(store.get, one.key) for one, *_ in reads[n + 1 : n + 2]]
                wanted = piece.completions(data, low - first, high - first)
                yield from enumerate(wanted, start=low)


class ResumableLoader:
    """A DataLoader of a :class:`CompletionDataset` that knows which samples came out of it.

    What workers have read ahead is not counted as given. Attributes and options are DataLoader's.
    """

    def __init__(self, dataset: CompletionDataset, **options: Any) -> None:
        if options.get("persistent_workers"):
            raise UsageError(
                "persistent_workers cannot be had here.",
                why="Workers that live on would not hear of a new epoch or a state.",
                fix="Leave it out: workers are started once an epoch.",
            )
        collate = options.pop("collate_fn", None) or pad
        self.dataset = dataset
        self._loader = DataLoader(_Placed(dataset), collate_fn=_Unplace(collate), **options)
        self._progress: Progress | None = None

    def __iter__(self) -> Iterator[Any]:
        progress = self.dataset.to_give((0, 1))
        batches = iter(self._loader)  # the workers are made: what was loaded is theirs
        self.dataset.load_nothing()
        self._progress = progress
        for places, batch in batches:
            for place in places:
                progress.give(place)
            yield batch

    def state_dict(self) -> State:
        """Return where the loader is: behind the last batch that it gave."""
        return self.dataset.state_of(self._progress or self.dataset.to_give((0, 1)))

    def load_state_dict(self, state: State | Sequence[State]) -> None:
        """Go on behind a batch, at the next iteration; see CompletionDataset.load_state_dict."""
        self.dataset.load_state_dict(state)
        self._progress = None


class _Placed(IterableDataset):  # type: ignore[misc]
    """The data set, with a place beside each sample."""

    def __init__(self, dataset: CompletionDataset) -> None:
        super().__init__()
        self._dataset = dataset

    def __iter__(self) -> Iterator[tuple[Place, Sample]]:
        return self._dataset.placed()


class _Unplace:
    """Collates samples, and keeps their places beside the batch."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, given: Any) -> tuple[list[Place], Any]:
        if isinstance(given, tuple):  # batch_size=None: one sample
            return [given[0]], self._collate(given[1])
        return [place for place, _ in given], self._collate([sample for _, sample in given])


def pad(samples: Sequence[Sample] | Sample) -> Sample:
    """Return samples as one batch, [samples, tokens] of the longest, zeros behind the shorter.

    One sample (DataLoader's ``batch_size=None``) is returned as it is.
    """
    if isinstance(samples, dict):
        return samples
    return {
        name: torch.nn.utils.rnn.pad_sequence([one[name] for one in samples], batch_first=True)
        for name in samples[0]
    }


def _tensors(example: Example) -> Sample:
    ids = torch.tensor(example.input_ids, dtype=torch.int64)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "loss_mask": torch.tensor(example.loss_mask, dtype=torch.int64),
    }


def _start_of(left: Ranges, at: int) -> int:
    return next(start for start, end in left if start <= at < end)


def _worker() -> Worker:
    info = get_worker_info()
    return (info.id, info.num_workers) if info else (0, 1)


def _known_rank() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
