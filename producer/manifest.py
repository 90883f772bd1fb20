"""run.json: what a run is, put up once, and how a later command differs from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import stamina

from common.cliutil import genq_version
from common.codec import dumps
from common.errors import StoreError
from common.model import model_name
from common.objectstore import Created, ObjectMissingError, RunPaths
from common.prove import read_manifest
from common.records import RunManifest, RunSettings, Sampling
from producer.load.spool import SHARD_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable

    from common.ids import RunName
    from common.objectstore import ObjectStore
    from producer.load.spool import Spool

_PLAIN = (
    *("model", "samples", "seed", "thinking", "max_attempts", "retry_max_tokens"),
    *("keep_answers", "reproducible", "canary_rows", "canary_faults", "canary_truncated"),
)
_TRIES = 8
_TRY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Wishes:
    """The settings of a run that a command names; None where it does not."""

    model: str | None = None
    samples: int | None = None
    seed: int | None = None
    thinking: bool | None = None
    max_attempts: int | None = None
    policies: dict[str, str] = field(default_factory=dict)  # of the classes that are named
    retry_max_tokens: int | None = None
    keep_answers: bool | None = None
    reproducible: bool | None = None
    canary_rows: int | None = None
    canary_faults: float | None = None
    canary_truncated: float | None = None
    sampling: Sampling = field(default_factory=Sampling)

    def over(self, base: RunSettings, fingerprint: Callable[[str], str]) -> RunSettings:
        """Return ``base`` with what is named here put over it."""
        own = {name: value for name in _PLAIN if (value := getattr(self, name)) is not None}
        if self.model is not None:
            own["model_fingerprint"] = fingerprint(self.model)
        return replace(
            base,
            **own,
            policies=base.policies | self.policies,
            sampling=self.sampling.over(base.sampling),
        )


def make_manifest(run: RunName, settings: RunSettings, spool: Spool, source: str) -> RunManifest:
    """Return the run.json of a data set that was read."""
    return RunManifest(
        run=run,
        settings=settings,
        fingerprint=spool.fingerprint,
        rows=spool.rows,
        shard_rows=SHARD_ROWS,
        shards=spool.shards,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        source=source,
        genq_version=genq_version(),
    )


def find_manifest(store: ObjectStore, run: RunName) -> RunManifest | None:
    """Return the run.json that stands, or None.

    Raises:
        StoreError: the store cannot be asked, or run.json is damaged.
    """
    try:
        return read_manifest(store, run)
    except ObjectMissingError:
        return None


def publish(store: ObjectStore, manifest: RunManifest) -> RunManifest:
    """Put run.json up if there is none; return the one that stands, which may be another's.

    An answer that was lost is no harm: what stands is read back, never overwritten.

    Raises:
        StoreError: it cannot be made certain that one stands.
    """
    key = RunPaths(manifest.run).run_json
    data = dumps(manifest)
    for attempt in stamina.retry_context(on=_UncertainError, attempts=_TRIES, timeout=_TRY_SECONDS):
        with attempt:
            if store.create(key, data, content_type="application/json") is Created.CREATED:
                return manifest
            standing = find_manifest(store, manifest.run)
            if standing is not None:
                return standing
            raise _UncertainError(
                f"{store.url}/{key} could not be created.",
                why="The store neither took it nor holds one.",
                fix="Give the same command again: it goes on where it stopped.",
            )
    raise AssertionError("stamina ends with an answer or an error")


class _UncertainError(StoreError):
    """The conditional PUT had no clear end, and no object is there."""


def settings_differences(old: RunSettings, new: RunSettings) -> list[str]:
    """Return a line for each setting that differs, with both values.

    Models are compared by their last path component, and by fingerprint where both are known.
    """
    before, after = _flat(old), _flat(new)
    if model_name(old.model) == model_name(new.model):
        before["model"] = after["model"]
    if not (old.model_fingerprint and new.model_fingerprint):
        before["model_fingerprint"] = after["model_fingerprint"]
    return [
        f"{name}: was {_shown(before.get(name))}, now {_shown(after.get(name))}"
        for name in sorted(before | after)
        if before.get(name) != after.get(name)
    ]


_PREFIXES = {"sampling": "", "policies": "policy of "}  # as their flags call them


def _flat(settings: RunSettings) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in asdict(settings).items():
        if isinstance(value, dict):
            prefix = _PREFIXES.get(name, f"{name}.")
            flat |= {f"{prefix}{inner}": item for inner, item in value.items()}
        else:
            flat[name] = value
    return flat


def _shown(value: Any) -> str:
    if isinstance(value, str) and len(value) == 64:
        value = f"{value[:12]}..."  # a digest
    return "not set" if value is None else str(value)
