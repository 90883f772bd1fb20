"""From what was gathered to the report. Pure but for the clock."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from common.losses import loss_words
from common.parts.opening import datasets_line, duckdb_line
from producer.report.data import (
    ClassCount,
    Cost,
    Failures,
    OpenWith,
    Progress,
    Report,
    Waste,
)

if TYPE_CHECKING:
    from producer.report.data import Example, Throughput
    from producer.report.gather import Gathered

_HOUR_SECONDS = 3600.0


def make_report(found: Gathered, *, store_url: str, price: float | None) -> Report:
    """Return the report of what was gathered; ``price`` is that of an hour of one GPU."""
    survey, manifest = found.survey, found.manifest
    dead = dict(found.letters.by_class) if found.letters else {}
    finished = survey.verdicts.total() + sum(dead.values())
    told = manifest.settings.sampling.max_tokens
    throughput = survey.throughput()
    tokens = survey.tokens
    return Report(
        run=manifest.run,
        store=f"{store_url}/{manifest.run}",
        created=manifest.created,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        source=manifest.source,
        rows=manifest.rows,
        samples=manifest.settings.samples,
        progress=_progress(found),
        longest=survey.longest,
        limit=survey.limit(told, dead_truncated=dead.get("truncated", 0), finished=finished),
        lengths=survey.lengths.distribution(told),
        classes=_classes(found, dead, finished),
        thinking=survey.thinking(),
        tokens=tokens,
        throughput=throughput,
        failures=_failures(found),
        waste=_waste(found),
        cost=_cost(throughput, tokens.completion, price),
        engines=dict(survey.engines.most_common()),
        models=dict(survey.models.most_common()),
        genq_versions=dict(survey.versions.most_common()),
        settings=_settings(found),
        open_with=_open_with(found, f"{store_url}/{manifest.run}"),
        children=found.children,
        notes=_notes(found, throughput),
    )


def _progress(found: Gathered) -> Progress:
    committed = found.survey.verdicts.total()
    dead = found.letters.by_class.total() if found.letters else None
    counts = found.redis.counts if found.redis else None
    state = counts.state if counts else "unknown"
    if found.finished:
        state = "damaged" if found.lost else "finished"
    items = found.manifest.items
    return Progress(
        state=state,
        items=items,
        committed=committed,
        dead=dead,
        open=None if dead is None else max(0, items - committed - dead),
        in_stream=0 if found.finished else counts.generated if counts else None,
        hold_reason=counts.hold_reason if counts else "",
        lost=found.lost,
    )


def _classes(found: Gathered, dead: dict[str, int], finished: int) -> list[ClassCount]:
    """Return ``ok`` first, then the other classes, the commonest first."""
    kept = found.survey.verdicts
    policies = found.manifest.settings.policies
    counts = [
        ClassCount(
            verdict=name,
            kept=kept[name],
            dead=dead.get(name, 0),
            share=(kept[name] + dead.get(name, 0)) / finished,
            policy=policies.get(name),
        )
        for name in kept | dead
    ]
    return sorted(counts, key=lambda one: (one.verdict != "ok", -one.kept - one.dead, one.verdict))


def _failures(found: Gathered) -> Failures:
    examples: list[Example] = []
    for some in found.survey.examples.values():
        examples += [kept.example for kept in some]
    if found.letters:
        for letters in found.letters.examples.values():
            examples += letters
    tries = found.redis.counts.failures if found.redis else found.wasted.get("failed_tries")
    return Failures(
        tries_by_class=tries,
        dead_from=found.letters.source if found.letters else "unknown",
        examples=sorted(examples, key=lambda one: (one.verdict, one.kept, one.k)),
    )


def _waste(found: Gathered) -> Waste:
    wasted = found.redis.counts.wasted_tokens if found.redis else found.wasted.get("tokens")
    made = found.survey.tokens.completion
    share = None if wasted is None else wasted / (made + wasted) if made + wasted else 0.0
    return Waste(tokens=wasted, share=share, retried=found.survey.retried)


def _cost(throughput: Throughput, tokens: int, price: float | None) -> Cost:
    busy = sum(worker.busy_seconds for worker in throughput.workers)
    idle = sum(worker.idle_seconds for worker in throughput.workers)
    cost = None if price is None else busy / _HOUR_SECONDS * price
    return Cost(
        gpu_seconds=round(busy, 3),
        idle_seconds=round(idle, 3),
        tokens_per_gpu_second=round(tokens / busy, 3) if busy else None,
        price_per_gpu_hour=price,
        cost=cost,
        cost_per_million_tokens=cost / tokens * 1e6 if cost is not None and tokens else None,
    )


def _settings(found: Gathered) -> dict[str, Any]:
    settings = asdict(found.manifest.settings)
    sampling = {
        name: value for name, value in settings.pop("sampling").items() if value is not None
    }
    return settings | {"sampling": sampling}


def _open_with(found: Gathered, url: str) -> OpenWith:
    suffix = found.suffix or "parquet"
    run = found.manifest.run
    return OpenWith(
        copy=f"aws s3 cp --recursive {url}/data/ data/",
        duckdb=duckdb_line(f"data/*.{suffix}", suffix),
        datasets=datasets_line(f"data/*.{suffix}", suffix),
        verify=f"gen-producer verify {run}",
    )


def _notes(found: Gathered, throughput: Throughput) -> list[str]:
    notes = list(found.notes)
    lost = {found.manifest.run: found.lost} | {child.run: child.lost for child in found.children}
    notes += [f"{loss_words(run, count)}." for run, count in lost.items() if count]
    if found.letters is None:
        notes.append("What is dead-lettered is not known: the run is not finished.")
    if throughput.undated:
        notes.append(
            f"{throughput.undated:,} completions say that they were made before the run was"
            " loaded, or after now: they are in no figure over time."
        )
    return notes
