"""An item's life in words, and as data. Pure."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from common.codec import dumps
from common.duration import duration
from common.records import Verdict
from producer.status.store import one_line
from producer.steer.remedies import dead_remedy

if TYPE_CHECKING:
    from common.queue.item_state import ItemState
    from producer.trace.life import Answer, Life
    from producer.trace.names import Matches

JSON_VERSION = 1


def life_words(life: Life, url: str) -> str:
    """Return what to say of an item."""
    lines = _life_lines(life, url)
    lines.append(f"Next: {next_command(life)}")
    return "\n".join(lines)


def _life_lines(life: Life, url: str) -> list[str]:
    name = f" {one_line(life.row_id)}" if life.row_id else ""
    head = f"{life.run}  item {life.item}: row {life.row:,}{name}, sample {life.sample}"
    lines = [head, f"  now: {_now(life)}"]
    if life.parent:
        lines.append(f"  redoes item {life.parent[1]} of run {life.parent[0]}")
    if life.state:
        lines += _tries(life.state, told=life.answer is not None)
    elif life.letter:
        letter = life.letter
        lines.append(f"  given up {letter.at} on {letter.worker or '-'}: {indented(letter.text)}")
    if life.answer:
        lines += _answer(life.answer, url)
    if life.children:
        kind = "counts" if life.counts else "does not count: a child run's is ok"
        lines.append(f"  of the completions of this item, this one {kind}")
    for child in life.children:
        taken = "  <- counts instead of its parent's" if child.counts else ""
        lines.append(f"  child run for {child.reason or 'it'}:{taken}")
        lines += [f"    {line}" for line in _life_lines(child, url)]
    return lines


def _now(life: Life) -> str:
    state = life.state
    if state is None:
        if life.answer:
            return f"committed in part {life.answer.part}"
        if life.letter:
            return f"dead: {life.letter.verdict}"
        return "neither committed nor dead" + (" in a finished run" if life.finished else "")
    words = _place(state)
    if state.place == "committed":
        part = life.answer.part if life.answer else None
        words += f" in part {part}" if part is not None else ", but no part holds it"
    if state.place in ("queued", "waiting") and state.run_state not in ("open", "loading"):
        words += f"; the run is {state.run_state}"
    return words


def _place(state: ItemState) -> str:
    near = state.at
    words = {
        "queued": _queued(state),
        "taking": "being taken by a stock RQ worker",
        "leased": f"leased by {state.holder} until {_when(state.leased_until, near)}"
        " unless renewed",
        "waiting": f"waiting for its next try until {_when(state.due, near)}",
        "dead": f"dead since {_when(state.ended, near)}: {state.dead_class or 'of RQ itself'}",
        "generated": f"generated {_when(state.ended, near)}, in the results stream, {_read(state)}",
        "committed": "committed",
        "dropped": "dropped when the run was cancelled",
        "not loaded": "not queued yet: its load has not come to it",
        "nowhere": "nowhere: a tool has taken it out of the queue",
    }
    return words[state.place]


def _queued(state: ItemState) -> str:
    size = state.queue_length or 0
    if state.ahead is None:
        return f"queued, somewhere among {size:,} items"
    back = f"; taken back from {state.taken_from}, whose lease ended" if state.taken_from else ""
    return f"queued, {state.ahead:,} before it and {max(0, size - state.ahead - 1):,} behind{back}"


def _read(state: ItemState) -> str:
    result = state.result
    if result is None:
        return "waiting for the sink"
    if not result.sink:
        return "not read by a sink yet"
    ago = duration(result.read_seconds_ago or 0.0)
    times = f", for the {result.reads}. time" if result.reads > 1 else ""
    return f"read by sink {result.sink} {ago} ago{times}"


def _tries(state: ItemState, *, told: bool) -> list[str]:
    """Return what happened to an item; ``told``: its completion tells of its attempts."""
    used = f"attempts used up {state.attempts_used} of {state.attempts}"
    parts = [] if told and not state.attempts_used else [used]
    if state.deliveries_unfinished:
        parts.append(f"{state.deliveries_unfinished} hand-outs that ended without a verdict")
    if state.engine_deaths:
        parts.append(f"{state.engine_deaths} engine deaths")
    if state.kept_turns_bytes:
        parts.append(f"{state.kept_turns_bytes:,} bytes of finished turns kept")
    if state.watched:
        parts.append(f"watched by the canary: {state.watched}")
    lines = ["  tries: " + ", ".join(parts)] if parts else []
    if state.started is not None:
        lines.append(f"  last handed out {_when(state.started, state.at)} to {state.worker or '-'}")
    lines += [
        f"  failed {_when(one.at, state.at)} on {one.worker or '-'}: {indented(one.text)}"
        for one in state.failures
    ]
    return lines


def _answer(answer: Answer, url: str) -> list[str]:
    thought = f" ({answer.reasoning_tokens:,} thought)" if answer.reasoning_tokens else ""
    cached = f" ({answer.cached_tokens:,} cached)" if answer.cached_tokens else ""
    rate = answer.completion_tokens / answer.seconds if answer.seconds > 0 else 0.0
    made = (
        f"  made {answer.started} on {answer.worker} in {answer.seconds:.1f} s ({rate:,.0f} tok/s)"
    )
    by = f"  by {answer.model} on {answer.engine}, attempt {answer.attempt}, seed {answer.seed}"
    kind = (
        f"  completion: {answer.verdict}, finish reason {answer.finish_reason},"
        f" {answer.prompt_tokens:,} tokens in{cached}, {answer.completion_tokens:,} out{thought}"
    )
    lines = [kind, made, by]
    if answer.part is not None:
        lines.append(f"  stored: {url}/{answer.key}, row {answer.position} (the first is 0)")
    for name, value in (answer.texts or {}).items():
        if shown := _shown(value):
            lines.append(f"  {name}: {indented(shown)}")
    return lines


def _shown(value: Any) -> str:
    """Return a text, or JSON without what is not set."""
    if isinstance(value, dict):
        value = {name: one for name, one in value.items() if one is not None}
    if isinstance(value, str) or not value:
        return value or ""
    return dumps(value).decode()


def indented(text: str, columns: int = 4) -> str:
    """Return a text whole, in signs that no terminal takes for orders; its lines are indented."""
    clean = "".join(c if c.isprintable() or c == "\n" else " " for c in text.strip())
    return clean.replace("\n", "\n" + " " * columns)


def _when(at: float | None, now: float) -> str:
    if at is None:
        return "-"
    away = f"in {duration(at - now)}" if at > now else f"{duration(now - at)} ago"
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%SZ} ({away})"


def next_command(life: Life) -> str:
    """Return the command that is most useful now."""
    if child := _redoes(life):
        return next_command(child)
    run, state, answer = life.run, life.state, life.answer
    place = state.place if state else ""
    unstored = answer is None or answer.part is None
    lost = state is None and not (answer or life.finished)
    dead = place == "dead" or (state is None and life.letter is not None and life.finished)
    flawed = answer is not None and answer.verdict != Verdict.OK
    rules = (  # the first that holds
        (lost, f"gen-producer load --run {run}    puts back what is missing"),
        (place in ("nowhere", "dropped", "not loaded"), f"gen-producer load --run {run}"),
        (dead, dead_remedy(run, _class(life), item=life.item)),
        (place == "committed" and unstored, f"gen-producer verify {run}"),
        (
            flawed and not (unstored or _solved(life)),
            f"gen-producer requeue {run} --reason {answer and answer.verdict} --max-tokens N",
        ),
        (
            answer is not None and answer.texts is None,
            f"gen-producer trace {run} {life.item} --texts",
        ),
        (True, f"gen-producer status {run}"),
    )
    return next(words for holds, words in rules if holds)


def _redoes(life: Life) -> Life | None:
    """Return the child run's life that goes on with an item: what is given to one is not again.

    Not where one has it `ok`: nothing is to be done. A cancelled child gives its items back.
    """
    if life.answer is None or _solved(life):
        return None
    return next((one for one in reversed(life.children) if not _given_back(one)), None)


def _solved(life: Life) -> bool:
    return any(one.answer and one.answer.verdict == Verdict.OK for one in life.family())


def _given_back(child: Life) -> bool:
    cancelled = child.state is not None and child.state.run_state == "cancelled"
    return cancelled and child.answer is None


def _class(life: Life) -> str:
    if life.state and life.state.dead_class:
        return life.state.dead_class
    return life.letter.verdict if life.letter else ""


def matches_words(run: str, matches: Matches) -> str:
    """Return a line for each item that was meant, with the command that tells more."""
    lines = [f"{run}  {matches.total:,} items are meant:"]
    lines += [f"  item {one.item}: row {one.row:,}, sample {one.sample}" for one in matches.found]
    if matches.total > len(matches.found):
        lines.append(f"  ... and {matches.total - len(matches.found):,} more")
    lines.append(f"Next: gen-producer trace {run} {matches.found[0].item}")
    return "\n".join(lines)


def trace_json(run: str, asked: str, matches: Matches, life: Life | None, notes: list[str]) -> Any:
    """Return the answer as data. Fields are only ever added."""
    return {
        "version": JSON_VERSION,
        "run": run,
        "asked": asked,
        "matches": [
            {"item": one.item, "row": one.row, "sample": one.sample} for one in matches.found
        ],
        "match_count": matches.total,
        "life": _life_json(life) if life else None,
        "notes": notes,
        "next": next_command(life) if life else None,
    }


def _life_json(life: Life) -> dict[str, Any]:
    return {
        "run": life.run,
        "item": life.item,
        "job": life.job,
        "row": life.row,
        "sample": life.sample,
        "row_id": life.row_id,
        "reason": life.reason,
        "parent": {"run": life.parent[0], "item": life.parent[1]} if life.parent else None,
        "finished": life.finished,
        "redis": _state_json(life.state) if life.state else None,
        "completion": asdict(life.answer) if life.answer else None,
        "letter": asdict(life.letter) if life.letter else None,
        "counts": life.counts,
        "children": [_life_json(child) for child in life.children],
    }


def _state_json(state: ItemState) -> dict[str, Any]:
    told = asdict(state)
    if told["result"]:
        del told["result"]["payload"]  # what it says of itself is the completion
    return {name: value for name, value in told.items() if name not in ("run", "item")}
