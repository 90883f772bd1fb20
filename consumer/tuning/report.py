"""The report of a round, as Markdown and as data, and the profile that is made of it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from common.duration import duration
from consumer.engine.sglang_flags import newest_name
from consumer.tuning.profiles import ANY, Match, Profile, family_of
from consumer.tuning.serving import serving_of
from consumer.tuning.space import altering, describe

if TYPE_CHECKING:
    from consumer.tuning.results import Trial
    from consumer.tuning.round import Result
    from consumer.tuning.space import Space

JSON_VERSION = 1
_PARAMETERS_NEAR = 0.07  # a profile is for models of this much more or less parameters
# Likewise of their weights: a count from the shapes is not just the checkpoint's own sum, and
# another precision is nearly half of it, or twice.
_WEIGHTS_NEAR = 0.2
_BILLION = 1e9
# Base flags of a trial that are no part of what a profile is: they are of a model without weights.
_DUMMY = ("--load-format", "--skip-tokenizer-init")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a report tells beside the round itself."""

    model: str
    base: tuple[str, ...]
    sample: str
    minutes: float
    gpu: int | None = None
    command: str = ""
    remaining_items: int | None = None  # of the run
    price: float | None = None  # of a GPU-hour
    stopped: bool = False
    live: bool = False


def hours(tokens: float, rate: float) -> float | None:
    """Return for how many hours so many tokens last; None without a rate."""
    return tokens / rate / 3600 if rate > 0 else None


def as_data(result: Result, facts: Facts) -> dict[str, Any]:
    """Return the report as data. Fields are only ever added."""
    winner, tuned = result.winner, _tuned(result)
    return {
        "version": JSON_VERSION,
        "model": facts.model,
        "card": result.space.card.name if result.space.card else None,
        "base_flags": list(facts.base),
        "sample": facts.sample,
        "command": facts.command,
        "minutes": facts.minutes,
        "spent_seconds": round(result.spent_seconds, 1),
        "stopped": facts.stopped,
        "live": facts.live,
        "before_tokens_per_second": round(result.before, 1),
        "after_tokens_per_second": round(result.after, 1),
        "gain": round(result.after / result.before, 3) if result.before else None,
        "confirmed": result.confirmed,
        "changes_outputs": bool(winner and winner.changes_outputs),
        "requests_per_second_before": round(_requests(result, "A"), 3),
        "requests_per_second_after": round(_requests(result, "B"), 3),
        "parameters": [
            {"name": name, "default": before, "tuned": after}
            for name, before, after in parameters(result)
        ],
        "roofline_share": _share(result, tuned, result.after),
        "roofline_share_before": _share(result, result.baseline, result.before),
        "savings": savings(result, facts),
        "winner": winner.as_json() if winner else None,
        "default": result.baseline.as_json(),
        "trials": [trial.as_json() for trial in result.trials],
        "soak": [{"side": name, **trial.as_json()} for name, trial in result.soak],
        "notes": list(result.notes),
    }


def savings(result: Result, facts: Facts) -> dict[str, Any] | None:
    """Return hours and money for the run's remaining prompts, on one card; None without a run."""
    if facts.remaining_items is None:
        return None
    tokens = facts.remaining_items * result.space.lengths.output_tokens
    before, after = hours(tokens, result.before), hours(tokens, result.after)
    if before is None or after is None:
        return None
    found: dict[str, Any] = {
        "remaining_items": facts.remaining_items,
        "hours_before": round(before, 4),
        "hours_after": round(after, 4),
        "hours_saved": round(before - after, 4),
    }
    if facts.price is not None:
        found["money_saved"] = round((before - after) * facts.price, 2)
    return found


def _share(result: Result, trial: Trial, rate: float) -> float | None:
    flags = (*result.space.base, *trial.flags)
    bound = result.space.predicted(serving_of(flags), max(1, round(trial.running)))
    return round(rate / bound, 3) if bound else None


def as_markdown(result: Result, facts: Facts) -> str:
    """Return the report for people."""
    data = as_data(result, facts)
    winner = result.winner
    early = ", stopped early" if facts.stopped else ""
    tried = f"{len(result.trials) + 1} settings tried{early}"
    card = f" on {data['card']}" if data["card"] else ""
    lines = [
        f"# Tuning {facts.model}{card}",
        "",
        _verdict(result),
        "",
        f"- sample: {facts.sample}{' (real items, committed)' if facts.live else ''}",
        f"- command: `{facts.command}`",
        f"- time: {result.spent_seconds / 60:.1f} of {facts.minutes:g} min, {tried}",
    ]
    if winner is not None:
        lines.append(f"- flags: `{' '.join(winner.flags)}`, window {winner.window}")
    if winner is not None and winner.changes_outputs:
        lines.append("- these flags change what the model answers: taken only where they are named")
    if saved := data["savings"]:
        money = f", {saved['money_saved']:,.2f} saved" if "money_saved" in saved else ""
        lines.append(
            f"- the run's {saved['remaining_items']:,} remaining prompts on one card:"
            f" {duration(3600 * saved['hours_after'])}"
            f" instead of {duration(3600 * saved['hours_before'])}{money}"
        )
    if facts.live:
        lines.append(f"- completions committed on the way: {_kept(result):,}")
    lines += [f"- {note}" for note in result.notes]
    lines += ["", *_before_after(result, data), "", *_soak(result), *_trials(result)]
    return "\n".join(lines) + "\n"


def _verdict(result: Result) -> str:
    if result.winner is None:
        return f"The defaults are best: {result.before:,.0f} tokens/s. Nothing else is gained here."
    if result.confirmed is False:
        return (
            f"No setting held up: the best of the search did not beat the defaults"
            f" ({result.before:,.0f} tokens/s) again on held-out prompts."
        )
    sure = {True: "confirmed on held-out prompts", None: "not confirmed by a second measurement"}
    return (
        f"**{result.before:,.0f} -> {result.after:,.0f} tokens/s,"
        f" {result.after / result.before:.2f} x the defaults** (steady state,"
        f" {sure[result.confirmed]})."
    )


def _tuned(result: Result) -> Trial:
    """Return the winner's trial; that of the defaults where nothing beats them, or held up."""
    kept = None if result.confirmed is False else result.winner
    return kept or result.baseline


def _requests(result: Result, side: str) -> float:
    """Return the requests a second of the trials that the tokens a second are of."""
    tuned = _tuned(result)
    if tuned is result.baseline:
        side = "A"
    rates = [one.requests_per_second for who, one in result.soak if who == side and one.may_win]
    alone = result.baseline if side == "A" else tuned
    return sum(rates) / len(rates) if rates else alone.requests_per_second


def _before_after(result: Result, data: dict[str, Any]) -> list[str]:
    before, after = result.baseline, _tuned(result)
    rows = [
        ("output tokens/s", f"{result.before:,.0f}", f"{result.after:,.0f}"),
        ("requests/s", f"{_requests(result, 'A'):,.2f}", f"{_requests(result, 'B'):,.2f}"),
        ("running", f"{before.running:,.0f}", f"{after.running:,.0f}"),
        ("retractions", f"{before.retractions:,}", f"{after.retractions:,}"),
        ("fullest cache", f"{before.most_usage:.0%}", f"{after.most_usage:.0%}"),
        ("prompt tokens from cache", f"{before.cached_share:.0%}", f"{after.cached_share:.0%}"),
        ("power, W", _number(before.power_watts), _number(after.power_watts)),
        ("utilization", _percent(before.utilization), _percent(after.utilization)),
        (
            "share of the roofline",
            _percent(data["roofline_share_before"]),
            _percent(data["roofline_share"]),
        ),
        ("start, s", f"{before.start_seconds:.0f}", f"{after.start_seconds:.0f}"),
        *parameters(result),
    ]
    head = ["| | default | tuned |", "| --- | --- | --- |"]
    return [*head, *(f"| {name} | {one} | {two} |" for name, one, two in rows)]


def _soak(result: Result) -> list[str]:
    if not result.soak:
        return []
    rows = [
        f"| {name} | {'default' if name == 'A' else 'tuned'} | {one.tokens_per_second:,.0f} |"
        f" {one.retractions:,} | {one.measured_seconds:.0f} | {one.outcome} |"
        for name, one in result.soak
    ]
    head = ["## Confirmation on held-out prompts", "", "| | | tokens/s | retractions | s | |"]
    return [*head, "| --- | --- | --- | --- | --- | --- |", *rows, ""]


def _trials(result: Result) -> list[str]:
    head = ["## Trials, in order", "", "| setting | tokens/s | running | start s | |"]
    rows = []
    for trial in (result.baseline, *result.trials):
        what = describe(tuple(trial.point.items())) or "default"
        why = f": {trial.why}" if trial.why else ""
        rate = f"{trial.tokens_per_second:,.0f}" if trial.tokens_per_second else "-"
        running = f"{trial.running:,.0f}/{trial.max_running:,}" if trial.max_running else "-"
        words = re.sub(r"[|\s]+", " ", f"{trial.outcome}{why}")
        rows.append(f"| {what} | {rate} | {running} | {trial.start_seconds:.0f} | {words} |")
    return [*head, "| --- | --- | --- | --- | --- |", *rows]


def _kept(result: Result) -> int:
    tried = (result.baseline, *result.trials, *(trial for _, trial in result.soak))
    return sum(trial.kept for trial in tried)


def parameters(result: Result) -> list[tuple[str, str, str]]:
    """Return what the default had and what the tuned has: what the engine made of it, and flags.

    A default that no flag and no engine tells is worked out as the server does; "-" where that
    cannot be.
    """
    before, after, space = result.baseline, _tuned(result), result.space
    rows = [
        ("may run", _number(before.max_running), _number(after.max_running)),
        ("state slots", _number(before.state_slots), _number(after.state_slots)),
        ("tokens in the cache", _number(before.kv_tokens), _number(after.kv_tokens)),
        ("most in flight", _window(before), _window(after)),
    ]
    given, own = _values(space.base), _own(space)
    for name, value in _values((*space.base, *after.flags)).items():
        if given.get(name) != value:
            rows.append((f"`{name}`", given.get(name) or own.get(name, "-"), value))
    return rows


def _window(trial: Trial) -> str:
    return f"{trial.window:,}" if trial.window else "the limit and a quarter"


def _values(flags: tuple[str, ...]) -> dict[str, str]:
    """Return each flag's value by its newest name, "on" for one that has none."""
    found: dict[str, str] = {}
    name = ""
    for word in flags:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            name = newest_name(flag)
            found[name] = value if equals else "on"
        elif name:
            found[name] = word if found[name] == "on" else f"{found[name]} {word}"
    return found


def _own(space: Space) -> dict[str, str]:
    """Return what a server does where no flag says so, as far as that is known."""
    found = {"--kv-cache-dtype": "auto", "--schedule-policy": "fcfs", "--min-free-slots-delay": "1"}
    found |= dict.fromkeys(("--disable-radix-cache", "--disable-prefill-cuda-graph"), "off")
    shape, memory = space.shape, space.memory_bytes
    if shape is None or memory is None:
        return found
    own = space.serving.resolved(memory, shape)
    found["--mem-fraction-static"] = f"{own.mem_fraction:g}"
    found["--chunked-prefill-size"] = str(own.chunk_tokens)
    found["--cuda-graph-max-bs-decode"] = str(own.graph_batch)
    if shape.state is not None:
        found["--mamba-ssm-dtype"] = shape.state.dtype
    return found


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def profile_name(model: str, card: str) -> str:
    """Return the name of the profile that a round makes."""
    words = [word for word in ("tuned", card, model) if word]
    return re.sub(r"[^a-z0-9.]+", "-", "-".join(words).lower()).strip("-")


def profile_of_round(result: Result, facts: Facts, *, today: str = "") -> Profile | None:
    """Return the profile of the winner; None where there is none, or it did not hold up.

    It is taken by itself only where nothing speaks against it: see :func:`by_name_only`.
    """
    winner = result.winner
    if winner is None or result.confirmed is False:
        return None
    shape, card = result.space.shape, result.space.card
    version = winner.version.partition(" ")[2]
    match = Match(
        family=family_of(shape),
        parameters_billions=_near(shape.parameters, _PARAMETERS_NEAR) if shape else ANY,
        weights_gigabytes=_near(shape.weight_bytes, _WEIGHTS_NEAR) if shape else ANY,
        card=card.name if card else "",
        sglang=_range(version),
    )
    name = profile_name(facts.model, card.name if card else "")
    if winner.changes_outputs:
        name += "-changes-outputs"
    return Profile(
        name=name,
        flags=(*_lasting(facts.base), *winner.flags),
        match=match,
        about=f"Found by gen-consumer tune: {result.after / result.before:.2f} x the defaults.",
        window=winner.window,
        changes_outputs=winner.changes_outputs,
        auto=not by_name_only(result, facts),
        origin={
            "on": f"{card.name if card else 'an unknown card'}, {facts.model}, {winner.version}",
            "date": today or datetime.now(UTC).date().isoformat(),
            "against": "the engine's defaults with the same base flags",
            "sample": facts.sample,
            "tokens_per_second_before": round(result.before, 1),
            "tokens_per_second": round(result.after, 1),
            "running_before": round(result.baseline.running),
            "running": round(winner.running),
            "honesty": winner.honesty,
            "confirmed": f"{' '.join(name for name, _ in result.soak)} on held-out prompts"
            if result.confirmed
            else "no",
        },
    )


def by_name_only(result: Result, facts: Facts) -> str:
    """Return why the winner's profile is not taken by itself, or "" where it is."""
    if result.winner is not None and result.winner.changes_outputs:
        return "it changes outputs"
    if altered := altering(_lasting(facts.base)):
        return f"{', '.join(altered)}, given for all trials, may change outputs"
    if result.confirmed is not True:
        return "the minutes did not allow a confirmation"
    if result.space.shape is None or result.space.card is None:
        return "the card or the model's family is not known, so nothing can be matched"
    return ""


def _near(value: float, share: float) -> tuple[float, float]:
    """Return what is so near to a value, in billions."""
    low, high = (round(value / _BILLION * (1 + by), 3) for by in (-share, share))
    return low, high


def _range(version: str) -> str:
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if numbers is None:
        return ""
    major, minor, patch = (int(number) for number in numbers.groups())
    return f">={major}.{minor}.{patch},<{major}.{minor + 1}"


def _lasting(base: tuple[str, ...]) -> tuple[str, ...]:
    """Return base flags without those of a model that has no weights."""
    kept: list[str] = []
    words = list(base)
    while words:
        word = words.pop(0)
        if word.partition("=")[0] not in _DUMMY:
            kept.append(word)
        elif word == _DUMMY[0] and words:
            words.pop(0)
    return tuple(kept)
