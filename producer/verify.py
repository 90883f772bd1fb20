"""`gen-producer verify`: the proof from object storage alone, in words."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from common.audit import flagged
from common.errors import DeadLettersError, Exit, GenqError, VerifyError
from common.family import children_of, parent_items
from common.ids import RunName, run_name
from common.no_such_run import not_in_store
from common.objectstore import ObjectMissingError, RunPaths
from common.parts.bits import Bits
from common.parts.chain import put_back
from common.prove import Harm, Proof, prove, read_manifest
from common.s3 import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from common.objectstore import ObjectStore
    from common.settings import Settings
    from producer.console import Console

JSON_VERSION = 1
_PROBLEMS_SHOWN = 20


def run_verify(
    run: str, settings: Settings, console: Console, *, deep: bool, allow_failures: bool
) -> int:
    """Prove a run, and show the proof.

    Raises:
        UsageError: there is no such run.
        VerifyError: it is not complete, or an item is there twice, or something is damaged.
        DeadLettersError: it is complete, with dead letters, and those are not allowed.
    """
    name = run_name(run)
    store = open_store(settings)
    try:
        proof = prove(store, name, deep=deep)
    except ObjectMissingError as error:
        raise not_in_store(store, name) from error
    proven = proof.complete and proof.unique and not proof.problems
    given = _given(store, name, proof)
    console.result(_words(name, proof, given, proven=proven), _data(name, proof, proven=proven))
    if not proven:
        raise VerifyError(
            f"Run {name} is not proven.",
            why=f"{len(proof.problems)} problems; the first: {proof.problems[0]}"
            if proof.problems
            else "It is not complete.",
            fix=_remedy(name, proof, store.url),
        )
    if proof.dead and not allow_failures:
        raise DeadLettersError(
            f"Run {name} is complete, with {proof.dead:,} dead letters.",
            why="They are named in failed.jsonl.",
            fix=f"gen-producer failed {name}    (or accept them: verify --allow-failures)",
        )
    return Exit.DONE


def _remedy(run: RunName, proof: Proof, url: str) -> str:
    """Return what mends the worst that was found; what else there is shows when that is done."""
    harm, load = proof.harm, f"gen-producer load --run {run}"
    if key := harm.get(Harm.FORMAT):
        return (
            f"If {url}/{RunPaths(run).run_json} is the wrong one, put it back from a copy: an"
            " earlier version in the bucket, or a backup.\n"
            f"Else delete {url}/{key}: a sink writes it again, as the parts tell.\n"
            f"Then: gen-producer verify {run}"
        )
    if key := harm.get(Harm.PART):
        return f"{url}/{key}:\n{put_back(run)}"
    if key := harm.get(Harm.INPUT):
        return (
            f"Put {url}/{key} back from a copy: an earlier version in the bucket, or a backup.\n"
            "A shard, once it is deleted, is also made again from the data set as it was loaded:\n"
            f"gen-producer load DATASET --run {run}"
        )
    if key := harm.get(Harm.STRAY):
        return f"Move {url}/{key} elsewhere, then: gen-producer verify {run}"
    if not proof.finished:
        return (
            f"gen-producer status {run}    (if it is done there, or not in Redis: {load} has what"
            " is missing made again)"
        )
    if key := harm.get(Harm.INDEX):
        does = f"writes an index that is gone again (delete {key} first, if it is there)"
    elif Harm.ITEMS in harm:
        does = "has what is missing made again"
    else:
        does = "has a sink write the last objects again"
    return f"{load}    {does}"


def _words(run: RunName, proof: Proof, given: Mapping[str, int], *, proven: bool) -> str:
    verdicts = ", ".join(f"{count:,} {name}" for name, count in sorted(proof.verdicts.items()))
    lines = [
        f"{run}  {'proven: complete and unique' if proven else 'NOT proven'}",
        f"{proof.items:,} items = {proof.committed:,} committed + {proof.dead:,} dead"
        + (f" + {left:,} missing" if (left := _missing(proof)) else ""),
        f"{proof.parts:,} parts" + (f"; {verdicts}" if verdicts else ""),
        *_unchecked_words(run, proof),
        *_flagged_words(run, proof, given),
        *(f"  {problem}" for problem in proof.problems[:_PROBLEMS_SHOWN]),
    ]
    if (more := len(proof.problems) - _PROBLEMS_SHOWN) > 0:
        lines.append(f"  ... and {more} more problems")
    return "\n".join(lines)


def _flagged_words(run: RunName, proof: Proof, given: Mapping[str, int]) -> list[str]:
    kept = flagged(proof.verdicts)
    if not kept:
        return []
    words = f"{sum(kept.values()):,} of them are kept but flagged, not ok."
    left = [name for name, count in kept.items() if count > given.get(name, 0)]
    if not left:
        return [f"{words} All are with child runs: gen-producer status {run}"]
    again = f"gen-producer requeue {run} --reason {left[0]} --max-tokens N"
    return [f"{words} To do them again: {again}"]


def _given(store: ObjectStore, run: RunName, proof: Proof) -> dict[str, int]:
    """Return how many items of each flagged class child runs have, as far as that can be told."""
    found: dict[str, Bits] = {}
    if not flagged(proof.verdicts):
        return {}
    with suppress(GenqError):  # the proof is of this run alone
        manifest = read_manifest(store, run)
        for child in children_of(store, manifest):
            bits = found.setdefault(child.parent_reason, Bits(manifest.items))
            bits.add_all(parent_items(child, manifest.items))
    return {name: len(bits) for name, bits in found.items()}


def _unchecked_words(run: RunName, proof: Proof) -> list[str]:
    if not proof.unchecked:
        return []
    why = "checked by name and size alone, as their ETags are no MD5"
    return [f"{proof.unchecked:,} parts {why}. To read them: gen-producer verify {run}"]


def _missing(proof: Proof) -> int:
    return proof.items - proof.committed - proof.dead


def _data(run: RunName, proof: Proof, *, proven: bool) -> dict[str, Any]:
    return {
        "version": JSON_VERSION,
        "run": run,
        "proven": proven,
        **asdict(proof),
        "harm": {str(kind): key for kind, key in proof.harm.items()},
        "flagged": flagged(proof.verdicts),
    }
