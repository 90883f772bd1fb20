"""Whether a run in Redis is the one that a command means: same rows, same settings, same store."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import TYPE_CHECKING

import orjson

from common.errors import ConflictError
from common.model import model_name
from common.records import RunSettings

if TYPE_CHECKING:
    from common.records import RunInfo, RunManifest


def settings_digest(manifest: RunManifest) -> str:
    """Return a digest of all settings of a run and of its number of items.

    The model counts by its name alone: its path may differ, and not every machine can see its
    fingerprint, which is compared by itself. What has its default value does not count, so that
    a release with one more setting comes to the same digest.
    """
    settings = manifest.settings
    plain = asdict(RunSettings(settings.model, settings.model_fingerprint))
    chosen = {name: value for name, value in asdict(settings).items() if value != plain[name]}
    chosen["sampling"] = {
        name: value for name, value in asdict(settings.sampling).items() if value is not None
    }
    whole = [model_name(settings.model), manifest.items, chosen]
    canonical = orjson.dumps(whole, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(canonical).hexdigest()


def refuse_other_store(known: RunInfo, store: str, *, otherwise: str = "") -> None:
    """Return if ``store`` (a URL) is where the run is kept, as Redis knows it; "" is not known.

    For whatever would change objects of a run by its name: another store may hold another run of
    that name. ``otherwise`` is a way out beside naming the run's own store.

    Raises:
        ConflictError: the run is kept in another store; nothing was changed.
    """
    if known.store and store and known.store != store:
        raise ConflictError(
            f"Run {known.run} in Redis belongs to another store.",
            why=f"It was loaded into {known.store}; this command names {store}.",
            fix=f"Name that store: export GENQ_STORE={known.store}"
            + (f"\n{otherwise}" if otherwise else ""),
        )


def refuse_other(known: RunInfo, manifest: RunManifest, store: str) -> None:
    """Return if the run in Redis is ``manifest`` in ``store``; what is not known is no difference.

    Raises:
        ConflictError: it is another; nothing was changed.
    """
    run = manifest.run
    another = f"--run {run[:60]}-2"
    refuse_other_store(known, store, otherwise=f"Or another run: {another}")
    if known.fingerprint != manifest.fingerprint:
        raise ConflictError(
            f"Run {run} exists with other rows.",
            why=f"Redis holds {known.items} items of fingerprint {known.fingerprint[:12]};"
            f" these are {manifest.items} of {manifest.fingerprint[:12]}.",
            fix=f"Choose another name: {another}",
        )
    if _other_settings(known, manifest):
        raise ConflictError(
            f"The run {run} in Redis has other settings.",
            why=f"Redis holds {known.items} items for model {known.model}; these are"
            f" {manifest.items} for {manifest.settings.model}, or another setting differs.",
            fix=f"Give the settings that it was loaded with, or another name: {another}",
        )


def _other_settings(known: RunInfo, manifest: RunManifest) -> bool:
    mine = manifest.settings.model_fingerprint
    return (
        known.items != manifest.items
        or (bool(known.settings) and known.settings != settings_digest(manifest))
        or (bool(known.model_fingerprint) and bool(mine) and known.model_fingerprint != mine)
    )
