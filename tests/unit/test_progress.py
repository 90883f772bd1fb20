"""What gen-local shows of a run."""

from __future__ import annotations

import pytest

from common.audit import RunCounts
from deploy.progress import RATE_SECONDS, Rates, duration, summary


def counts(*, state="open", queued=0, leased=0, generated=0, committed=0, dead=0, tokens=0):
    total = queued + leased + generated + committed + dead
    return RunCounts(
        run="r", epoch="e", state=state, total=total, loaded=total, queued=queued, waiting=0,
        leased=leased, generated=generated, committed=committed, dead=dead,
        completion_tokens=tokens,
    )  # fmt: skip


def test_rate_and_eta_come_from_the_last_seconds_only():
    rates = Rates()
    rates.look(counts(queued=100), now=0.0)
    rates.look(counts(queued=90, generated=10), now=1000.0)
    look = rates.look(
        counts(queued=70, generated=20, committed=10, tokens=400), now=1000.0 + RATE_SECONDS / 2
    )
    assert look.per_second == pytest.approx(2.0)
    assert look.tokens_per_second == pytest.approx(40.0)
    assert look.eta_seconds == pytest.approx(35.0)


def test_nothing_known_gives_no_eta():
    look = Rates().look(counts(queued=3), now=5.0)
    assert look.eta_seconds is None
    assert summary(look).startswith("starting the model: 0 of 3 answered")
    assert summary(look).endswith("ETA -")


@pytest.mark.parametrize(
    ("seen", "word"),
    [
        (counts(queued=2), "starting the model"),
        (counts(queued=1, leased=1), "generating"),
        (counts(queued=1, generated=1), "generating"),
        (counts(generated=2), "storing"),
        (counts(committed=1, dead=1), "finishing"),
        (counts(queued=1, state="held"), "held"),
    ],
)
def test_the_word_says_what_the_run_is_doing(seen, word):
    assert Rates().look(seen, now=0.0).word == word


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0, "0:00"), (59.6, "1:00"), (3725, "1:02:05")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_dead_letters_are_named():
    assert "1 given up" in summary(Rates().look(counts(committed=1, dead=1), now=0.0))
