"""Proof from storage alone: what of a run is committed, once each, and complete.

Nothing here asks Redis. Memory is bounded by one bit an item and one part at a time.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from common import codec
from common.build import NewerVersionError, build, newer, refuse_newer
from common.errors import VerifyError
from common.objectstore import ObjectMissingError, RunPaths
from common.parts import codec_for
from common.parts.bits import Bits
from common.parts.chain import (
    FOREIGN,
    check_end,
    format_key,
    part_number,
    read_contents,
    read_format,
    refuse_foreign,
    walk,
)
from common.parts.index import PartIndex, describe_part, read_index
from common.parts.owner import Owner, refuse_other_name
from common.ranges import lines_of
from common.records import RUN_VERSION, RunManifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from common.ids import RunName
    from common.objectstore import ObjectStat, ObjectStore
    from common.parts.index import FoundPart
    from common.records import ShardInfo

MAX_PROBLEMS = 100  # named one by one; the rest are counted
_SHARD_LIMIT_BYTES = 16 * 2**30


class Harm(StrEnum):
    """What a problem is about: this decides what helps."""

    INPUT = "input"  # run.json, or a prompt shard
    PART = "part"  # one is damaged, or missing with others behind it
    STRAY = "stray"  # something else lies among the parts
    FORMAT = "format"  # format.json is another run's
    ITEMS = "items"  # some are in no part, and no dead letters
    INDEX = "index"  # the completions are whole, what tells of a part is not
    END = "end"  # one of the last objects


@dataclass(frozen=True, slots=True)
class Proof:
    """What storage says of a run. It is proven if there are no problems."""

    complete: bool  # every item is committed or in failed.jsonl, and _SUCCESS says so
    unique: bool  # no item is committed twice
    items: int
    committed: int
    dead: int
    parts: int
    problems: list[str] = field(default_factory=list)  # each names the object
    verdicts: dict[str, int] = field(default_factory=dict)
    harm: dict[str, str] = field(default_factory=dict)  # kind -> the first object that has it
    finished: bool = False  # _SUCCESS is there
    unchecked: int = 0  # parts of which only name and size were looked at


def input_fingerprint(digests: Iterable[str]) -> str:
    """Return the fingerprint of a run's rows from the sha256 (hex) of its shards, in order."""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def read_manifest(store: ObjectStore, run: RunName) -> RunManifest:
    """Return run.json.

    Raises:
        StoreError: the store could not be asked; ObjectMissingError if there is none;
            NewerObjectError if it is of a newer version than this program knows.
        VerifyError: it is damaged, or another run's.
    """
    key = RunPaths(run).run_json
    try:
        raw = codec.loads(store.get(key))
        refuse_newer(raw, key, RUN_VERSION)
        manifest = build(RunManifest, raw)
    except NewerVersionError as error:
        raise newer(f"{store.url}/{key}", error) from error
    except ValueError as error:
        raise VerifyError(
            f"{store.url}/{key} is damaged.",
            why=str(error),
            fix="Put it back from a copy: an earlier version in the bucket, or a backup.\n"
            "Without one, delete it, and load the same rows with the same flags (but not a child"
            f" run):\ngen-producer load DATASET --run {run}",
        ) from error
    refuse_other_name(manifest, run, store.url)
    return manifest


def committed_items(
    store: ObjectStore,
    manifest: RunManifest,
    *,
    each: Callable[[FoundPart], None] | None = None,
) -> bytes:
    """Return a bitmap of the committed items: item k is bit ``7 - k % 8`` of byte ``k // 8``.

    ``each`` is called with every part that is read for it.

    Raises:
        StoreError: the store could not be asked.
        VerifyError: a part is damaged or another run's, or one was deleted.
    """
    paths, owner = RunPaths(manifest.run), Owner.of(manifest)
    bits = Bits(manifest.items)
    suffix = read_format(store, paths)
    if suffix is None:
        return bits.to_bytes()
    end = 0
    for found in walk(store, paths, suffix):
        refuse_foreign(store, paths, found.index, owner)
        bits.add_all(item for item in found.index.items if item < manifest.items)
        end += 1
        if each is not None:
            each(found)
    check_end(store, paths, suffix, end)
    return bits.to_bytes()


def prove(store: ObjectStore, run: RunName, *, deep: bool = True) -> Proof:
    """Return the proof of a run; ``deep`` reads every part instead of trusting its index.

    Else a part is read where its index is missing, or says another size or MD5 than the store.

    Raises:
        StoreError: the store could not be asked, or the run has no run.json, or a newer genq wrote
            something of it.
        VerifyError: run.json or format.json is damaged, or run.json is another run's.
    """
    prover = _Prover(store, read_manifest(store, run), deep=deep)
    prover.check_input()
    prover.check_parts()
    prover.check_failed()
    prover.check_end()
    return prover.proof()


class _Prover:
    """Collects the proof, object by object."""

    def __init__(self, store: ObjectStore, manifest: RunManifest, *, deep: bool) -> None:
        self._store = store
        self._manifest = manifest
        self._deep = deep
        self._paths = RunPaths(manifest.run)
        self._owner = Owner.of(manifest)
        self._committed = Bits(manifest.items)
        self._accounted = Bits(manifest.items)
        self._verdicts: Counter[str] = Counter()
        self._success = self._read_json(self._paths.success)
        # While a run goes on, the list of an earlier end may be there; it says nothing then.
        self._listed = self._read_listed() if self._success is not None else {}
        self._tells_md5 = not deep and self._etags_are_md5()
        self._problems: list[str] = []
        self._harm: dict[str, str] = {}
        self._more_problems = 0
        self._parts = self._repeated = self._dead = self._unchecked = 0

    def proof(self) -> Proof:
        problems = list(self._problems)
        if self._more_problems:
            problems.append(f"... and {self._more_problems} more problems")
        missing = self._manifest.items - len(self._accounted)
        return Proof(
            complete=missing == 0 and self._success is not None,
            unique=self._repeated == 0,
            items=self._manifest.items,
            committed=len(self._committed),
            dead=self._dead,
            parts=self._parts,
            problems=problems,
            verdicts=dict(self._verdicts),
            harm=self._harm,
            finished=self._success is not None,
            unchecked=self._unchecked,
        )

    def check_input(self) -> None:
        """Check the prompt shards against run.json: digests, counts, and the fingerprint."""
        manifest = self._manifest
        key = self._paths.run_json
        rows = 0
        for number, shard in enumerate(manifest.shards):
            if shard.first_row != rows:
                self._say(
                    Harm.INPUT, key, f"shard {number} begins at row {shard.first_row}, not {rows}"
                )
            rows = shard.first_row + shard.rows
            self._check_shard(number, shard)
        if rows != manifest.rows:
            self._say(Harm.INPUT, key, f"its shards hold {rows} rows, not {manifest.rows}")
        if input_fingerprint(shard.sha256 for shard in manifest.shards) != manifest.fingerprint:
            self._say(Harm.INPUT, key, "the fingerprint is not that of its shards")

    def _check_shard(self, number: int, shard: ShardInfo) -> None:
        key = self._paths.prompts(self._manifest.fingerprint, number)
        try:
            lines = codec.decompress(self._store.get(key), limit_bytes=_SHARD_LIMIT_BYTES)
        except ObjectMissingError:
            self._say(Harm.INPUT, key, "is missing")
            return
        except ValueError as error:
            self._say(Harm.INPUT, key, f"is damaged: {error}")
            return
        if hashlib.sha256(lines).hexdigest() != shard.sha256:
            self._say(Harm.INPUT, key, "its rows are not those that run.json names")
        rows = lines.count(b"\n")
        if rows != shard.rows:
            self._say(Harm.INPUT, key, f"holds {rows} rows, not {shard.rows}")

    def check_parts(self) -> None:
        """Check each part: in the chain, whole, as its index and the manifest describe it."""
        suffix = read_format(self._store, self._paths)
        if read_contents(self._store, self._paths).owner not in {None, self._owner}:
            self._say(Harm.FORMAT, format_key(self._paths), "is another run's")
        for stat in self._store.list(self._paths.data_prefix):
            named = part_number(self._paths, stat.key)
            if named is None or named[1] != suffix:
                self._say(Harm.STRAY, stat.key, "is not one of the run's parts")
                continue
            number = named[0]
            if number != self._parts:
                self._say(Harm.PART, self._paths.part(self._parts, named[1]), "is missing")
            self._parts = number + 1
            index = self._check_part(stat, number, named[1])
            if index is not None:
                self._take(index, stat.key)

    def _check_part(self, stat: ObjectStat, number: int, suffix: str) -> PartIndex | None:
        key = self._paths.index(number)
        index = read_index(self._store, self._paths, number)
        if index is None:
            self._say(Harm.INDEX, key, "is missing or damaged")
        if index is None or self._deep or not self._bears_out(stat, index):
            found = self._open(stat, number, suffix)
            if found is None:
                return None
            if index is not None and index != found and not self._owner.disowns(found.token):
                self._say(self._liar(index, found), key, f"does not describe {stat.key}")
            index = found
        if self._owner.disowns(index.token):
            self._say(Harm.PART, stat.key, f"is {FOREIGN}")
            return None
        listed = self._listed.get(number)
        if listed is not None and listed.get("sha256") != index.sha256:
            self._say(Harm.PART, stat.key, f"is not the part that {self._paths.manifest} lists")
        return index

    def _bears_out(self, stat: ObjectStat, index: PartIndex) -> bool:
        """Return whether the store says of a part what its index says, as far as it tells."""
        if stat.size != index.bytes:
            return False
        if self._tells_md5 and len(stat.etag) == len(index.md5):  # longer: uploaded in pieces
            return stat.etag == index.md5
        self._unchecked += 1
        return True

    def _etags_are_md5(self) -> bool:
        """Return whether ETags are made from bodies alone; with keys of one's own they are not."""
        stat = self._store.stat(self._paths.run_json)
        data = self._store.get(self._paths.run_json)
        return (
            stat is not None and stat.etag == hashlib.md5(data, usedforsecurity=False).hexdigest()
        )

    def _liar(self, index: PartIndex, found: PartIndex) -> Harm:
        """Return what is wrong where a part and its index differ: the one that nobody bears out."""
        if index.token != found.token:  # it tells of a part that was there before this one
            return Harm.INDEX
        listed = self._listed.get(found.part, {}).get("sha256")
        return Harm.INDEX if found.sha256 in (index.sha256, listed) else Harm.PART

    def _open(self, stat: ObjectStat, number: int, suffix: str) -> PartIndex | None:
        try:
            return describe_part(number, codec_for(suffix), self._store.get(stat.key))
        except ObjectMissingError:
            self._say(Harm.PART, stat.key, "is listed, but cannot be read")
        except NewerVersionError as error:
            raise newer(f"{self._store.url}/{stat.key}", error) from error
        except ValueError as error:
            self._say(Harm.PART, stat.key, f"is damaged: {error}")
        return None

    def _take(self, index: PartIndex, key: str) -> None:
        if len(index.items) != index.rows:
            self._say(Harm.PART, key, f"names {len(index.items)} items for {index.rows} rows")
        for item in index.items:
            if not 0 <= item < self._manifest.items:
                self._say(Harm.PART, key, f"holds item {item}, which the run does not have")
            elif not self._committed.add(item):
                self._repeated += 1
                self._say(Harm.PART, key, f"holds item {item} again")
            else:
                self._accounted.add(item)
        self._verdicts.update(index.verdicts)

    def check_failed(self) -> None:
        """Check the dead letters: each names one item of the run that is not committed.

        While a run goes on, the file of an earlier end may be there; it says nothing then.
        """
        if self._success is None:
            return
        key = self._paths.failed
        found = self._store.stat(key)
        if found is None:
            self._say(Harm.END, key, "is missing")
            return
        for number, line in enumerate(lines_of(self._store, found), start=1):
            self._check_dead(key, number, line)

    def _check_dead(self, key: str, number: int, line: bytes) -> None:
        try:
            item = int(codec.loads(line)["k"])
        except (ValueError, KeyError, TypeError):
            self._say(Harm.END, f"{key}:{number}", "is not a dead letter")
            return
        if not 0 <= item < self._manifest.items:
            self._say(Harm.END, f"{key}:{number}", f"item {item} is not one of the run's")
        elif not self._accounted.add(item):
            self._say(Harm.END, f"{key}:{number}", f"item {item} is committed or named twice")
        else:
            self._dead += 1

    def check_end(self) -> None:
        """Check that _SUCCESS is there exactly if nothing is missing, and counts right."""
        total = self._manifest.items
        missing = total - len(self._accounted)
        if missing:
            first = ", ".join(str(k) for k in _first(self._accounted.missing(), 5))
            self._say(
                Harm.ITEMS,
                self._paths.data_prefix,
                f"{missing} of {total} items are neither committed nor in failed.jsonl"
                f" (the first: {first})",
            )
        if self._success is None:
            self._say(Harm.END, self._paths.success, "is missing: the run is not finished")
            return
        expected = {"items": total, "committed": len(self._committed), "dead": self._dead}
        said = {name: self._success.get(name) for name in expected}
        if missing or said != expected:
            self._say(Harm.END, self._paths.success, f"says {said}, found {expected}")
        if self._parts and len(self._listed) != self._parts:
            self._say(
                Harm.END, self._paths.manifest, f"lists {len(self._listed)} parts of {self._parts}"
            )

    def _read_listed(self) -> dict[int, dict[str, Any]]:
        manifest = self._read_json(self._paths.manifest) or {}
        parts = manifest.get("parts")
        listed = [one for one in parts if isinstance(one, dict)] if isinstance(parts, list) else []
        return {part["part"]: part for part in listed if isinstance(part.get("part"), int)}

    def _read_json(self, key: str) -> dict[str, Any] | None:
        try:
            raw = codec.loads(self._store.get(key))
        except ObjectMissingError:
            return None
        except ValueError:
            return {}
        return raw if isinstance(raw, dict) else {}

    def _say(self, harm: Harm, key: str, problem: str) -> None:
        self._harm.setdefault(harm, key)
        if len(self._problems) < MAX_PROBLEMS:
            self._problems.append(f"{key}: {problem}")
        else:
            self._more_problems += 1


def _first(items: Iterable[int], count: int) -> list[int]:
    return [item for item, _ in zip(items, range(count), strict=False)]
