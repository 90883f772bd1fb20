"""A round of tuning over simulated servers and a simulated clock."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import replace

import pytest

from common.duration import duration
from common.errors import EngineError, UsageError
from common.ids import RunName
from consumer.cli import command as gen_consumer
from consumer.tuning.opening import TuneOptions
from consumer.tuning.profiles import choose, profile_of, profile_text
from consumer.tuning.report import (
    Facts,
    as_data,
    as_markdown,
    by_name_only,
    profile_of_round,
)
from consumer.tuning.results import Outcome, Trial, trial_of
from consumer.tuning.round import Round, Spent
from consumer.tuning.search import Search
from consumer.tuning.steady import Pace
from tests.support.simulated import BASE, CARD, SHAPE, Clock, SimulatedServers, space

PACE = Pace(measure_seconds=20.0, least_seconds=8.0)
FACTS = Facts(model="Qwen3.6-27B", base=BASE, sample="a test", minutes=30.0)
BAD = {
    "16384": Outcome.CRASHED,
    "lpm": Outcome.HUNG,
    "--disable-prefill-cuda-graph": Outcome.DISHONEST,
}


class Silent:
    def begin(self, *_):
        pass

    def end(self, *_):
        pass

    def say(self, _):
        pass


def round_of(folder, servers, *, minutes, **options) -> Round:
    state_dtype = options.pop("state_dtype", False)
    return Round(
        search=Search(folder / "journal.log"),
        tried=servers,
        space_of=lambda baseline: space(baseline, state_dtype=state_dtype),
        pace=PACE,
        minutes=minutes,
        spent=Spent(folder / "spent.json", servers.clock),
        clock=servers.clock,
        board=Silent(),
        **options,
    )


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


async def test_the_report_and_the_profile_tell_what_was_gained(tmp_path):
    result = await round_of(tmp_path, SimulatedServers(Clock()), minutes=30).run()
    facts = Facts("Qwen3.6-27B", BASE, "a test", 30.0, remaining_items=900_000, price=3.0)
    data, text = as_data(result, facts), as_markdown(result, facts)
    saved = data["savings"]
    assert saved["hours_before"] == pytest.approx(900_000 * 256 / result.before / 3600, rel=1e-3)
    assert saved["money_saved"] == pytest.approx(3.0 * saved["hours_saved"], rel=1e-2)
    assert f"{result.after / result.before:.2f} x the defaults" in text
    before, after = (duration(3600 * saved[f"hours_{when}"]) for when in ("before", "after"))
    assert f"remaining prompts on one card: {after} instead of {before}, " in text
    assert 0.5 < data["roofline_share"] < 0.8
    assert [trial_of(one) for one in data["trials"]] == list(result.trials)
    profile = profile_of_round(result, facts, today="2026-01-01")
    assert profile.name == "tuned-h200-qwen3.6-27b"
    assert profile.auto
    assert profile.origin["confirmed"] == "A B A B on held-out prompts"
    assert profile.match.sglang == ">=0.5.17,<0.6"
    assert "dummy" not in profile.flags
    assert profile.flags[0] == "--language-model-only"
    assert profile.window == result.winner.window

    import tomllib  # noqa: PLC0415

    assert profile_of(tomllib.loads(profile_text(profile))) == profile


async def test_the_report_tells_of_each_parameter_what_it_was_and_what_it_is(tmp_path):
    result = await round_of(tmp_path, SimulatedServers(Clock()), minutes=12).run()
    told = {
        one["name"]: (one["default"], one["tuned"]) for one in as_data(result, FACTS)["parameters"]
    }
    flags = dict(zip(result.winner.flags, result.winner.flags[1:], strict=False))
    assert told["may run"] == (f"{result.baseline.max_running}", f"{result.winner.max_running}")
    assert told["most in flight"][1] == f"{result.winner.window}"
    assert told["`--disable-radix-cache`"] == ("off", "on")
    assert told["`--max-running-requests`"] == ("-", flags["--max-running-requests"])
    changed = {name.strip("`") for name in told if name.startswith("`")}
    assert changed == {word for word in result.winner.flags if word.startswith("--")}
    slow = replace(
        result.winner, flags=("--chunked-prefill-size=16384", "--mem-fraction-static", "0.93")
    )
    slow = replace(slow, tokens_per_second=9e9, state_slots=266)
    other = replace(
        result, trials=(slow,), soak=(), baseline=replace(result.baseline, state_slots=245)
    )
    text = as_markdown(other, FACTS)
    assert "| `--chunked-prefill-size` | 8192 | 16384 |" in text
    assert "| `--mem-fraction-static` | 0.903 | 0.93 |" in text
    assert "| state slots | 245 | 266 |" in text
    blind = replace(other, space=replace(other.space, shape=None))
    assert "| `--mem-fraction-static` | - | 0.93 |" in as_markdown(blind, FACTS)


async def test_both_rates_of_a_report_are_of_the_same_trials(tmp_path):
    """A request has 256 tokens here, in the search and in the confirmation alike."""
    servers = SimulatedServers(Clock(), held_out=lambda _setting, rate: 0.8 * rate)
    result = await round_of(tmp_path, servers, minutes=30).run()
    assert result.confirmed
    data = as_data(result, FACTS)
    for when in ("before", "after"):
        rate = data[f"{when}_tokens_per_second"]
        assert data[f"requests_per_second_{when}"] == pytest.approx(rate / 256, rel=1e-3)
    said = f"| requests/s | {result.before / 256:,.2f} | {result.after / 256:,.2f} |"
    assert said in as_markdown(result, FACTS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--kv-cache-dtype fp8_e4m3", "--kv-cache-dtype"),
        ("--quantization=fp8", "--quantization"),
        ("--context-length 4096 --mamba-ssm-dtype bfloat16", "--context-length, --mamba-ssm-dtype"),
        ("--json-model-override-args {}", "--json-model-override-args"),
        ("--max-running-requests 64 --cuda-graph-max-bs 64 --random-seed -1", ""),
        ("--speculative-algorithm NEXTN --speculative-num-steps 3 --attention-backend fa3", ""),
    ],
)
async def test_flags_of_all_trials_that_may_change_answers_keep_a_profile_from_being_taken(
    tmp_path, given, said
):
    result = await round_of(tmp_path, SimulatedServers(Clock()), minutes=30).run()
    facts = replace(FACTS, base=(*BASE, *given.split()))
    profile = profile_of_round(result, facts)
    assert profile.auto == (not said)
    assert by_name_only(result, facts).startswith(f"{said}, given for all trials" if said else "")
    assert bool(choose([profile], SHAPE, CARD.name, "0.5.17")) == (not said)


async def test_a_tuned_profile_is_for_its_models_precision(tmp_path):
    result = await round_of(tmp_path, SimulatedServers(Clock()), minutes=30).run()
    half = replace(SHAPE, weight_bytes=round(0.55 * SHAPE.weight_bytes))
    for tuned, other in ((SHAPE, half), (half, SHAPE)):
        profile = profile_of_round(replace(result, space=replace(result.space, shape=tuned)), FACTS)
        assert choose([profile], tuned, CARD.name, "0.5.17") is profile
        assert choose([profile], other, CARD.name, "0.5.17") is None
        (miss,) = profile.match.misses(other, CARD.name, "0.5.17")
        assert miss == f"the model's weights take {other.weight_bytes / 1e9:.1f} GB"


@pytest.mark.parametrize(
    "asked",
    [
        TuneOptions(gpu=3, minutes=30.0, run=RunName("my-run"), live=True, price=2.5),
        TuneOptions(gpu=None, minutes=7.5, prompts="my prompts.jsonl", allow_state_dtype=True),
        TuneOptions(gpu=0, minutes=8.0, prompts="random:9:9", card="H200", flags=("--x", "a b")),
    ],
)
def test_the_command_of_a_report_asks_for_the_same_round(asked):
    said = asked.command("/models/one two")
    words = shlex.split(said)
    assert words[:2] == ["gen-consumer", "tune"]
    given = gen_consumer.commands["tune"].make_context("tune", words[2:]).params
    assert (given["live"] if asked.live else given["run"]) == asked.run
    assert given["model"] == (None if asked.run else "/models/one two")
    assert (given["prompts"] or "") == asked.prompts
    for name in ("gpu", "minutes", "price", "card", "allow_state_dtype", "allow_kv_dtype", "flags"):
        assert given[name] == getattr(asked, name)


def test_a_setting_that_retracts_cannot_win():
    fast = Trial(Outcome.OK, tokens_per_second=100.0, retracted_share=0.05)
    assert not fast.may_win
    assert fast.score == pytest.approx(50.0)
    assert Trial(Outcome.DISHONEST, tokens_per_second=9000.0).score == 0.0
