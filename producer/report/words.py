"""The sentences of a report. Pure: from its numbers to words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from producer.report import numbers

if TYPE_CHECKING:
    from producer.report.data import ClassCount, Limit, Report

_STATES = {
    "finished": "finished",
    "damaged": "finished, and damaged since",
    "closed": "being finished",
    "open": "under way",
    "loading": "loading",
    "paused": "paused",
    "held": "held",
    "cancelled": "cancelled",
    "unknown": "not finished",
}
CLASSES = {
    "ok": "whole answers",
    "truncated": "cut off at the token limit",
    "empty": "no text at all",
    "thought_only": "the thought never ended, or nothing followed it",
    "looping": "its end repeats itself",
    "content_error": "the engine refused the content",
    "too_long": "the prompt does not fit the model's context",
    "input_truncated": "the engine saw less of the prompt than was sent",
    "bad_row": "the row cannot be asked",
}


def headline(report: Report) -> tuple[str, str]:
    """Return the answer to the question: how long is the longest, and is the limit met often?"""
    if report.longest is None:
        return "Nothing is committed yet", "so there is no longest completion, and no limit was met"
    longest = f"The longest completion has {report.longest.tokens:,} tokens"
    cut = report.limit.cut
    if not cut:
        return longest, "and none was cut off at a limit"
    finished = report.progress.committed + (report.progress.dead or 0)
    return longest, (
        f"and {numbers.percent(report.limit.share)} were cut off at"
        f" {limit_words(report.limit)}: {cut:,} of {finished:,}"
    )


def limit_words(limit: Limit) -> str:
    """Return at which limit they were cut off, by number only where that is known of all."""
    if limit.cut_lowest is None or limit.cut_highest is None:
        return "their limit"
    if limit.cut_lowest == limit.cut_highest:
        return f"the limit of {limit.cut_lowest:,}"
    return f"limits between {limit.cut_lowest:,} and {limit.cut_highest:,}"


def advice(report: Report) -> tuple[str, str]:
    """Return (what that means, a command), each of which may be empty."""
    told, longest = report.limit.run_max_tokens, report.longest
    kept = next((one.kept for one in report.classes if one.verdict == "truncated"), 0)
    if longest is None:
        return "", ""
    again = sum(child.taken for child in report.children if child.redone == "truncated")
    if again:
        return f"Of these, {again:,} were done again in child runs, and are whole there.", ""
    if kept:
        more = f" --max-tokens {2 * told}" if told else ""
        return (
            "Cut answers are kept, and flagged by their verdict. To redo them with more room:",
            f"gen-producer requeue {report.run} --reason truncated{more}",
        )
    if not report.limit.cut and told and longest.tokens < told:
        share = numbers.percent(longest.tokens / told)
        return f"The limit is {told:,}; the longest uses {share} of it.", ""
    return "", ""


def state(report: Report) -> str:
    """Return how the run stands, in a word or two."""
    word = _STATES.get(report.progress.state, report.progress.state)
    if report.progress.state == "finished":
        return word
    items = report.progress.items
    share = report.progress.committed / items if items else 0.0
    return f"{word}, {numbers.percent(share)} committed"


def summary(report: Report) -> str:
    """Return the answer on a terminal: a few lines."""
    first, second = headline(report)
    progress, cost = report.progress, report.cost
    dead = "dead not known" if progress.dead is None else f"{progress.dead:,} dead"
    counts = f"{progress.committed:,} of {progress.items:,} committed, {dead}"
    lines = [f"{first}, {second}.", f"{report.run}  {state(report)}: {counts}"]
    bad = [one for one in report.classes if one.verdict != "ok"]
    if bad:
        lines.append("  " + ", ".join(_class_words(one) for one in bad))
    made = f"  {report.tokens.completion:,} tokens in {numbers.hours(cost.gpu_seconds)} GPU-hours"
    lines.append(made + (f", cost {numbers.money(cost.cost)}" if cost.cost is not None else ""))
    return "\n".join([*lines, *(f"  Note: {note}" for note in report.notes)])


def _class_words(one: ClassCount) -> str:
    return f"{one.kept + one.dead:,} {one.verdict} ({numbers.percent(one.share)})"
