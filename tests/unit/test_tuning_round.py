"""A round of tuning over simulated servers and a simulated clock."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from common.errors import EngineError, UsageError
from consumer.tuning.report import as_markdown, by_name_only, profile_of_round
from consumer.tuning.results import Outcome, Trial
from consumer.tuning.round import _confirmation
from consumer.tuning.search import Search
from tests.support.rounds import FACTS, round_of
from tests.support.simulated import Clock, SimulatedServers

BAD = {
    "16384": Outcome.CRASHED,
    "lpm": Outcome.HUNG,
    "--disable-prefill-cuda-graph": Outcome.DISHONEST,
}


async def test_half_an_hour_finds_the_better_flags_and_confirms_them(tmp_path):
    servers = SimulatedServers(Clock(), bad=BAD)
    began = servers.clock.now
    result = await round_of(tmp_path, servers, minutes=30).run()
    assert servers.clock.now - began <= 30 * 60
    assert "--disable-radix-cache" in result.winner.flags
    assert not set(BAD).intersection(result.winner.flags)
    assert result.after > 2.1 * result.before
    assert [name for name, _ in result.soak] == ["A", "B", "A", "B"]
    assert result.confirmed
    assert all(order.held_out for order in servers.seen[-4:])
    assert len({order.seed for order in servers.seen}) == len(servers.seen)
    ends = {trial.outcome for trial in result.trials}
    assert {Outcome.DISHONEST, Outcome.CRASHED} <= ends, "what fails is a result, not an end"


async def test_eight_minutes_are_enough_for_the_largest_gain(tmp_path):
    servers = SimulatedServers(Clock(), start_seconds=100.0)
    began = servers.clock.now
    result = await round_of(tmp_path, servers, minutes=8).run()
    assert servers.clock.now - began <= 8 * 60
    assert result.after > 2.1 * result.before
    assert any("did not allow the confirmation A B A B" in note for note in result.notes)
    assert "not confirmed" in as_markdown(result, FACTS) or result.confirmed
    profile = profile_of_round(result, FACTS)
    assert profile.auto == (result.confirmed is True), "nobody is served by a guess unasked"


class ColdFirst(SimulatedServers):
    """The machine's first start compiles kernels, as seen on an H200: 189 s, and 65 s after it."""

    def _trial(self, order):
        self.start_seconds = 65.0 if len(self.seen) > 1 else 189.0
        return super()._trial(order)


async def test_a_cold_first_start_does_not_forfeit_the_confirmation(tmp_path):
    servers = ColdFirst(Clock())
    began = servers.clock.now
    result = await round_of(tmp_path, servers, minutes=19).run()
    assert servers.clock.now - began <= 19 * 60
    assert [name for name, _ in result.soak] == ["A", "B", "A", "B"]
    assert result.confirmed


class SlowEnds(SimulatedServers):
    """A driver that takes its time to give a card's memory back."""

    async def __call__(self, order):
        if self.seen and order.until - self.clock.now < 250.0:
            self.start_seconds = 1000.0  # it comes up only when the minutes are over
        trial = await super().__call__(order)
        self.clock.now += 40.0
        return replace(trial, seconds=trial.seconds + 40.0, end_seconds=40.0)


@pytest.mark.parametrize("minutes", [14, 16.5, 19])
async def test_servers_that_end_slowly_end_within_the_minutes(tmp_path, minutes):
    servers = SlowEnds(Clock())
    began = servers.clock.now
    await round_of(tmp_path, servers, minutes=minutes).run()
    assert servers.clock.now - began <= minutes * 60
    again = SlowEnds(servers.clock)
    result = await round_of(tmp_path, again, minutes=minutes + 3).run()
    assert servers.clock.now - began <= (minutes + 3) * 60
    assert result.baseline.end_seconds == 40.0


async def test_what_came_to_nothing_by_no_fault_of_its_setting_is_tried_again(tmp_path):
    class Behind(SimulatedServers):
        """Nothing is handed out for its first trial, nor for the winner's confirmation."""

        async def __call__(self, order):
            trial = await super().__call__(order)
            if len(self.seen) == 2 or (order.held_out and order.setting.flags):
                return replace(trial, outcome=Outcome.STOPPED, why="the sink is behind")
            return trial

    servers = Behind(Clock())
    result = await round_of(tmp_path, servers, minutes=60).run()
    tried = servers.seen[1].setting
    assert (tried.flags, tried.window) in [(one.flags, one.window) for one in result.trials]
    assert "--disable-radix-cache" in result.winner.flags
    assert Outcome.STOPPED not in {trial.outcome for trial in result.trials}
    assert result.confirmed is None, "a confirmation that was not measured refutes nothing"


async def test_a_search_that_tries_in_vain_ends_and_says_why(tmp_path):
    class Away(SimulatedServers):
        async def __call__(self, order):
            trial = await super().__call__(order)
            return (
                replace(trial, outcome=Outcome.STOPPED, why="x") if order.setting.flags else trial
            )

    servers = Away(Clock())
    result = await round_of(tmp_path, servers, minutes=60).run()
    assert (len(servers.seen), result.trials) == (3, ())
    assert result.notes == ("The search ended early: x.",)


class Paused(SimulatedServers):
    """The run is paused after so many trials."""

    after = 2

    async def __call__(self, order):
        if len(self.seen) == self.after:
            return Trial(
                Outcome.STOPPED, "Run r is paused.", fix="gen-producer resume r    (or: x)"
            )
        return await super().__call__(order)


async def test_a_search_that_waits_for_a_person_ends_says_how_it_goes_on_and_does(tmp_path):
    servers = Paused(Clock())
    result = await round_of(tmp_path, servers, minutes=60).run()
    assert (len(servers.seen), len(result.trials)) == (2, 1)
    way = "First: gen-producer resume r (or: x); then the same command again goes on."
    assert result.notes[0] == f"The search ended early: Run r is paused. {way}"
    assert f"- {result.notes[0]}\n" in as_markdown(result, FACTS)
    assert result.confirmed is None
    assert any("confirmation ended early: Run r" in note for note in result.notes)
    again = SimulatedServers(servers.clock)
    then = await round_of(tmp_path, again, minutes=60, most_trials=2).run()
    assert again.seen[0].setting.key not in {order.setting.key for order in servers.seen}
    assert then.confirmed


async def test_defaults_for_which_the_run_hands_nothing_out_name_the_way_out(tmp_path):
    servers = Paused(Clock())
    servers.after = 0
    with pytest.raises(UsageError, match="defaults were not measured") as refusal:
        await round_of(tmp_path, servers, minutes=60).run()
    assert refusal.value.why == "Run r is paused."
    assert refusal.value.fix.startswith("gen-producer resume r")


class Empty(SimulatedServers):
    """The run has nothing more to lease after so many trials."""

    after = 0

    async def __call__(self, order):
        if len(self.seen) == self.after:
            why = "the run has nothing more to lease"
            return Trial(Outcome.LATE, why, fix="gen-producer status r")
        return await super().__call__(order)


async def test_a_run_that_runs_out_under_the_defaults_is_not_said_to_want_minutes(tmp_path):
    with pytest.raises(UsageError, match="defaults were not measured") as refusal:
        await round_of(tmp_path, Empty(Clock()), minutes=30).run()
    assert refusal.value.why == "The run has nothing more to lease."
    assert refusal.value.fix == "gen-producer status r", "the same command would say it again"


async def test_a_run_that_runs_out_under_the_search_ends_it_and_says_so(tmp_path):
    servers = Empty(Clock())
    servers.after = 2
    result = await round_of(tmp_path, servers, minutes=60).run()
    said = "the run has nothing more to lease. See: gen-producer status r"
    assert result.notes[0] == f"The search ended early: {said}"


class Improved(SimulatedServers):
    """Servers of which one setting has become faster."""

    def _trial(self, order):
        trial = super()._trial(order)
        faster = 1.5 if "16384" in order.setting.flags else 1.0
        return replace(trial, tokens_per_second=faster * trial.tokens_per_second)


async def test_a_better_setting_that_more_minutes_find_is_confirmed_anew(tmp_path):
    servers = SimulatedServers(Clock(), bad={"16384": Outcome.HUNG})
    first = await round_of(tmp_path, servers, minutes=16).run()
    assert [name for name, _ in first.soak].count("B") >= 1
    assert "16384" not in first.winner.flags
    then = await round_of(tmp_path, Improved(servers.clock), minutes=80).run()
    assert "16384" in then.winner.flags
    assert [trial.flags for name, trial in then.soak if name == "B"] == [then.winner.flags] * 2
    assert sorted(name for name, _ in then.soak) == ["A", "A", "B", "B"]
    assert then.confirmed
    assert then.after > 1.3 * first.after


async def test_a_state_of_half_the_size_is_tried_only_where_it_is_allowed(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    allowed = await round_of(
        tmp_path / "a", SimulatedServers(Clock()), minutes=12, state_dtype=True
    ).run()
    assert allowed.winner.changes_outputs
    assert allowed.after > 2.4 * allowed.before
    profile = profile_of_round(allowed, FACTS)
    assert profile.changes_outputs
    assert "changes-outputs" in profile.name
    assert by_name_only(allowed, FACTS) == "it changes outputs"
    plain = SimulatedServers(Clock())
    await round_of(tmp_path / "b", plain, minutes=12).run()
    assert not any("--mamba-ssm-dtype" in order.setting.flags for order in plain.seen)


async def test_a_round_goes_on_where_it_was_stopped_and_its_minutes_add_up(tmp_path):
    def killed(order):
        if len(servers.seen) == 3:
            raise asyncio.CancelledError

    servers = SimulatedServers(Clock(), before=killed)
    began = servers.clock.now
    with pytest.raises(asyncio.CancelledError):
        await round_of(tmp_path, servers, minutes=30).run()
    first = servers.clock.now - began
    again = SimulatedServers(servers.clock)
    result = await round_of(tmp_path, again, minutes=30).run()
    assert servers.clock.now - began <= 30 * 60
    assert again.seen[0].setting.flags, "the defaults are not measured again"
    assert result.spent_seconds == pytest.approx(servers.clock.now - began)
    assert result.spent_seconds > first
    tried = [order.setting.key for order in (*servers.seen, *again.seen) if not order.held_out]
    assert len(set(tried)) == len(tried), "nothing is tried twice"


async def test_a_round_whose_minutes_are_over_only_reports(tmp_path):
    servers = SimulatedServers(Clock())
    first = await round_of(tmp_path, servers, minutes=12).run()
    again = SimulatedServers(servers.clock)
    second = await round_of(tmp_path, again, minutes=12).run()
    assert not again.seen
    assert second.winner == first.winner


async def test_a_confirmation_begins_no_trial_after_the_minutes(tmp_path):
    servers = SimulatedServers(Clock())
    first = await round_of(tmp_path, servers, minutes=30, soaks=0).run()
    assert first.winner
    again = SimulatedServers(servers.clock)
    result = await round_of(tmp_path, again, minutes=12).run()
    assert not again.seen
    assert any("nothing was measured again" in note for note in result.notes)


async def test_a_confirmation_that_was_whole_stays_so_where_no_time_is_left(tmp_path):
    servers = SimulatedServers(Clock())
    first = await round_of(tmp_path, servers, minutes=30).run()
    again = SimulatedServers(servers.clock)
    result = await round_of(tmp_path, again, minutes=first.spent_seconds / 60 - 3).run()
    assert not again.seen
    assert [name for name, _ in result.soak] == ["A", "B", "A", "B"]
    assert result.confirmed
    assert not any("did not allow" in note for note in result.notes)


@pytest.mark.parametrize(
    ("measured", "fits", "plan", "ahead"),
    [
        ("", -3, "", ""),
        ("", 1, "B", "B"),
        ("", 3, "AB", "AB"),
        ("", 9, "ABAB", "ABAB"),
        ("AA", 0, "", ""),  # the B were of another winner
        ("AA", 2, "ABAB", "BB"),
        ("ABA", -1, "AB", ""),
        ("ABAB", -9, "ABAB", ""),
    ],
)
def test_a_confirmation_is_as_long_as_what_was_measured_and_still_fits(measured, fits, plan, ahead):
    soak = [(name, Trial(Outcome.OK)) for name in measured]
    assert _confirmation(soak, 4, fits) == (plan, list(ahead))


def test_what_was_under_way_at_a_kill_is_tried_once_more_and_no_more(tmp_path):
    choices = {"fill": (1.0, 0.5), "radix": ("off", "on")}
    point = {"fill": 0.5, "radix": "on"}
    search = Search(tmp_path / "journal.log")
    search.queue([point, {"fill": 1.0, "radix": "off"}])
    assert search.ask(choices)[1] == point
    search = Search(tmp_path / "journal.log")  # killed: nothing was told
    search.queue([point])
    asked = [search.ask(choices)[1] for _ in range(2)]
    assert point in asked
    search = Search(tmp_path / "journal.log")
    again = [search.ask(choices)[1]]
    assert again != [point], "twice in a row it took the process down: enough"


async def test_a_winner_that_does_not_hold_up_makes_no_profile(tmp_path):
    servers = SimulatedServers(
        Clock(), held_out=lambda setting, rate: rate if not setting.flags else 100.0
    )
    result = await round_of(tmp_path, servers, minutes=30).run()
    assert result.confirmed is False
    assert result.after == result.before
    assert profile_of_round(result, FACTS) is None
    text, running = as_markdown(result, FACTS), f"{result.baseline.running:,.0f}"
    assert "did not beat the defaults" in text
    assert f"| running | {running} | {running} |" in text, "it is not what was tuned"


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.DISHONEST, Outcome.HUNG])
async def test_defaults_that_do_not_run_end_the_round(tmp_path, outcome):
    servers = SimulatedServers(Clock(), bad={"dummy": outcome})
    with pytest.raises(EngineError, match="defaults do not run"):
        await round_of(tmp_path, servers, minutes=30).run()


async def test_too_few_minutes_are_said_to_be_so(tmp_path):
    servers = SimulatedServers(Clock())
    with pytest.raises(UsageError, match="minutes are too few"):
        await round_of(tmp_path, servers, minutes=1).run()
    assert servers.clock.now - 1000 <= 60


def test_a_setting_that_retracts_cannot_win():
    fast = Trial(Outcome.OK, tokens_per_second=100.0, retracted_share=0.05)
    assert not fast.may_win
    assert fast.score == pytest.approx(50.0)
    assert Trial(Outcome.DISHONEST, tokens_per_second=9000.0).score == 0.0
