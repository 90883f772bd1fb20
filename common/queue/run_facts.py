"""What Redis says of a run, as records: its facts and its counters, read from their hashes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from common.audit import RunCounts
from common.errors import QueueError
from common.ids import Epoch, RunName
from common.queue.canary import read_canary
from common.records import RunInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def texts(flat: Sequence[bytes]) -> dict[str, str]:
    """Return the pairs of a flat answer: name, value, ..."""
    parts = [part.decode() for part in flat]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def texts_of(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    """Return a hash as text."""
    return {name.decode(): value.decode() for name, value in fields.items()}


def run_info(run: RunName, facts: Mapping[str, str]) -> RunInfo:
    """Return a run from its facts.

    Raises:
        QueueError: they are not whole.
    """
    try:
        return RunInfo(
            run=run,
            epoch=Epoch(facts["epoch"]),
            state=facts["state"],
            priority=int(facts["priority"]),
            items=int(facts["total"]),
            fingerprint=facts["fingerprint"],
            model=facts["model"],
            model_fingerprint=facts["model_fingerprint"],
            created=int(facts["created"]) / 1000,
            hold_reason=facts.get("hold_reason", ""),
            settings=facts.get("settings", ""),
            store=facts.get("store", ""),
            closing=_closing(facts),
        )
    except (KeyError, ValueError) as error:
        raise QueueError(
            f"What Redis holds of run {run} cannot be read.", why=str(error)
        ) from error


def _closing(facts: Mapping[str, str]) -> str:
    return f"{facts['epoch']}-{facts.get('closing', 0)}-{facts.get('closed', 0)}"


def run_counts(run: RunName, answer: Sequence[Any]) -> RunCounts:
    """Return a run's counts from what the script `sample` answers."""
    numbers, facts, counters = answer[0], texts(answer[1]), texts(answer[2])
    canary = read_canary(facts, counters)
    queued, waiting, leased, generated, committed, dead, done, ghosts, foreign = numbers[:9]
    stray_holders, stray_mirrors, finished, taking, now_ms, overdue_ms = numbers[9:]

    def number(name: str) -> int:
        return int(counters.get(name, 0))

    def named(prefix: str) -> dict[str, int]:
        found = {name: int(n) for name, n in counters.items() if name.startswith(prefix)}
        return {name.removeprefix(prefix): n for name, n in found.items() if n}

    kept = Counter(named("verdict:"))
    kept.update(named("beside:"))
    known = "unseen" not in counters and kept.total() == done

    def since(name: str) -> float | None:
        # Never negative: the server's clock may have been set back.
        return max(0, now_ms - int(counters[name])) / 1000 if name in counters else None

    return RunCounts(
        run=run,
        epoch=facts["epoch"],
        state=facts["state"],
        total=int(facts["total"]),
        loaded=number("loaded"),
        queued=queued,
        waiting=waiting,
        leased=leased,
        generated=generated,
        committed=committed,
        dead=dead,
        ghosts=ghosts,
        foreign=foreign,
        done=done,
        committed_counter=number("committed"),
        stray_holders=stray_holders,
        stray_mirrors=stray_mirrors,
        finished_window=finished,
        taking=taking,
        stream_bytes=number("stream_bytes"),
        prompt_tokens=number("prompt_tokens"),
        completion_tokens=number("completion_tokens"),
        wasted_tokens=number("wasted_tokens"),
        failures=named("failure:"),
        verdicts=named("verdict:"),
        kept={name: n for name, n in kept.items() if n} if known else None,
        hold_reason=(facts["state"] == "held" and canary.cause) or facts.get("hold_reason", ""),
        canary=canary,
        priority=int(facts["priority"]),
        closing=_closing(facts),
        at=now_ms / 1000,
        oldest_wait=overdue_ms / 1000,
        since_lease=since("last_lease"),
        since_result=since("last_result"),
        since_commit=since("last_commit"),
        gpu_seconds=number("gpu_ms") / 1000,
    )
