"""The catalogue of messages: each kind is provoked for real, and read word for word.

Every message is three lines, what, why and the way out; here commands run as people type them,
on real servers, and the way out of some is then gone. What names the machine is left out: DIR is
the test's folder, HOST an address with its port, ID a random name, DATE a moment.
"""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path

import pytest
import redis
import structlog

from common import errors
from common.errors import EngineError, Exit, GenqError, UsageError
from common.ids import RunName
from common.objectstore import RunPaths
from consumer.engine.supervisor import StartBudget
from consumer.sink.service import SinkService
from deploy.embedded import free_ports
from tests.faults.messages import CASES, LOADED, Case
from tests.faults.typist import message
from tests.support.consumers import world_of
from tests.support.fake_engine import running_fake
from tests.support.fleet import Fleet
from tests.support.servers import eventually, eventually_sync
from tests.support.sinks import load_job, local_lab

TESTS = Path(__file__).parents[1]
OPERATIONS = TESTS.parent / "docs" / "operations.md"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_message_says_what_why_and_the_way_out(case: Case, type_in, redis_url, s3_server):
    for line in case.before:
        assert type_in(line)[0] == 0
    env = {name: value.format(s3=s3_server.endpoint) for name, value in case.env.items()}
    with redis.Redis.from_url(redis_url) as client:
        if case.policy:
            client.config_set("maxmemory-policy", case.policy)
        try:
            code, said = type_in(case.line, **env)
        finally:
            client.config_set("maxmemory-policy", "noeviction")
    assert (code, message(said)) == (case.kind.exit_code, case.text)
    assert [type(error) for error in type_in.shown] == [case.kind]
    assert "Traceback" not in said
    if case.then:
        assert case.then in case.text
        assert type_in(case.then)[0] == 0


def test_a_run_that_ends_with_dead_letters_says_how_to_see_them(type_in, settings):
    async def bury_one():
        job = await load_job(settings, "one", rows=2)
        await job.bury(await job.lease(1))
        await job.answer_all()
        await job.redis.aclose()

    asyncio.run(bury_one())
    code, said = type_in("gen-sink --run one --burst")
    assert code == Exit.DEAD_LETTERS
    assert message(said).splitlines() == [
        "Error: Finished, with dead-lettered items (one: 1).",
        "  failed.jsonl beside the data names each with its reason.",
        "  gen-producer failed one",
    ]
    assert type_in("gen-producer failed one")[0] == 0
    assert type_in("gen-producer verify one")[0] == Exit.DEAD_LETTERS
    assert type_in("gen-producer verify one --allow-failures")[0] == 0


def test_a_part_that_is_gone_is_named_and_its_items_are_made_again(type_in, settings, store):
    async def answer_all():
        job = await load_job(settings, "one", rows=2)  # what is there is left as it is
        await job.answer_all()
        await job.redis.aclose()

    asyncio.run(answer_all())
    assert type_in("gen-sink --run one --burst")[0] == 0
    (part,) = store.list(RunPaths(RunName("one")).data_prefix)
    store.delete(part.key)
    code, said = type_in("gen-producer verify one")
    assert code == Exit.VERIFY
    assert [line.strip() for line in message(said).splitlines()] == [
        "Error: Run one is not proven.",
        (
            "2 problems; the first: one/data/: 2 of 2 items are neither committed nor in"
            " failed.jsonl (the first: 0, 1)"
        ),
        "gen-producer load --run one    has what is missing made again",
    ]
    code, said = type_in("gen-producer load --run one")
    assert (code, "2 of 2 completions of the finished run are gone" in said) == (0, True)
    asyncio.run(answer_all())
    assert type_in("gen-sink --run one --burst")[0] == 0
    assert type_in("gen-producer verify one")[0] == 0


async def test_a_sink_for_a_run_that_is_not_there_says_what_it_waits_for(settings):
    job = await load_job(settings, "one", rows=2)
    async with local_lab(settings, job) as lab:
        with structlog.testing.capture_logs() as logs:
            sink = SinkService(lab.tools(), only=RunName("oen"), burst=True)
            lab.start(sink.serve())
            said = await eventually(lambda: [one for one in logs if "what" in one])
            lab.stop.set()
    (only,) = said
    assert only["what"].startswith("There is no run oen in Redis: did you mean one? Waiting for it")
    assert "gen-producer status" in only["fix"]


async def test_a_consumer_for_a_run_that_is_not_there_says_so(
    settings, store, service_env, tmp_path
):
    async with (
        world_of(settings, store, service_env, tmp_path) as world,
        running_fake(world.folder, api_key="") as engine,
    ):
        await world.load(2)
        with structlog.testing.capture_logs() as logs:
            async with world.serving(url=engine.url, runs=(RunName("oen"),)):
                said = await eventually(
                    lambda: [one for one in logs if one["event"] == "run left alone"]
                )
    assert [(one["run"], one["what"]) for one in said] == [("oen", "Redis has no such run")]
    assert said[0]["why"] == "There is no run oen in Redis: did you mean one?"


async def test_a_burst_for_a_run_that_is_not_there_ends_before_an_engine_starts(
    settings, store, service_env, tmp_path
):
    async with world_of(settings, store, service_env, tmp_path) as world:
        await world.load(2)
        nowhere = "http://127.0.0.1:9"  # an engine that would be waited for
        with pytest.raises(UsageError, match="no run oen in Redis: did you mean one"):
            await world.burst(url=nowhere, runs=(RunName("oen"),))


MISTYPED = (
    *("status oen", "verify oen", "failed oen", "requeue oen", "pause oen", "resume oen"),
    *("cancel oen", "priority oen 1", "report oen", "export oen --to messages -", "trace oen 0"),
    *("requeue oen --id 0", "requeue oen --reason truncated --max-tokens 9", "load --run oen"),
    "plan rows.jsonl --model m --like oen",
)


def test_a_mistyped_run_is_one_code_and_one_text_to_every_command(type_in):
    assert type_in(LOADED)[0] == Exit.DONE
    for words in MISTYPED:
        code, said = type_in(f"gen-producer {words}")
        first = message(said).split("\n")[0]
        assert (words, code, first.endswith(": did you mean one?")) == (words, Exit.USAGE, True)
        assert first.startswith("Error: There is no run oen in "), words
    code, said = type_in("gen-consumer --engine llamacpp --model m.gguf --run oen --burst")
    assert (code, "did you mean one?" in said) == (Exit.USAGE, True)


async def test_a_server_that_does_not_answer_is_named_and_waited_for(
    settings, store, service_env, tmp_path
):
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    brief = StartBudget(start_seconds=0.6, attempts=1)
    async with world_of(settings, store, service_env, tmp_path) as world:
        with structlog.testing.capture_logs() as logs, pytest.raises(EngineError) as refusal:
            await world.burst(url=url, budget=brief)
    said = [one for one in logs if one["event"] == "waiting for a server"]
    assert [(one["service"], one["url"]) for one in said] == [("engine", url)]
    assert refusal.value.what == "The engine failed: it was not ready within 0.6 s."
    assert url in refusal.value.fix


def test_a_bug_is_called_one_and_a_report_is_asked_for(type_in, monkeypatch):
    """Nobody can provoke one at will, so one is put in."""
    with monkeypatch.context() as patch:
        patch.setattr("common.settings.load_settings", lambda **_: 1 // 0)
        code, said = type_in("gen-consumer profiles")
    assert code == Exit.BUG
    assert said.splitlines()[-2:] == [
        "ZeroDivisionError: integer division or modulo by zero",
        "This is a bug in genq. Please report it with the lines above.",
    ]


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, Exit.INTERRUPTED), (signal.SIGTERM, Exit.TERMINATED)],
)
def test_a_signal_ends_a_service_with_its_own_code(service_env, tmp_path, number, code):
    fleet = Fleet(service_env, tmp_path)
    fleet.start("sink", "gen-sink")
    sink, log = fleet.members["sink"], fleet.log("sink")
    try:
        eventually_sync(lambda: "sink.started" in log.read_text(), 60)
        sink.send_signal(number)
        assert sink.wait(60) == code
    finally:
        sink.kill()
        sink.wait()
    assert "sink.stopped" in log.read_text()
    assert "Error" not in log.read_text()


WAITED_OUT = {"QueueFullError"}  # it ends no command: test_redis_losses.py reads what is said


def test_every_kind_of_error_is_shown_here_or_raised_in_a_test():
    kinds = {
        name
        for name, one in vars(errors).items()
        if isinstance(one, type) and issubclass(one, GenqError) and one is not GenqError
    }
    texts = [path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")]
    raised = {name for text in texts for name in re.findall(r"pytest\.raises\((\w+)", text)}
    assert kinds - raised - {case.kind.__name__ for case in CASES} == WAITED_OUT


PROVOKED_ABOVE = {
    Exit.DONE: test_a_message_says_what_why_and_the_way_out,  # by the way out
    Exit.BUG: test_a_bug_is_called_one_and_a_report_is_asked_for,
    Exit.DEAD_LETTERS: test_a_run_that_ends_with_dead_letters_says_how_to_see_them,
    Exit.VERIFY: test_a_part_that_is_gone_is_named_and_its_items_are_made_again,
    Exit.INTERRUPTED: test_a_signal_ends_a_service_with_its_own_code,
    Exit.TERMINATED: test_a_signal_ends_a_service_with_its_own_code,
}


def test_every_exit_code_is_documented_and_provoked():
    assert {case.kind.exit_code for case in CASES} | PROVOKED_ABOVE.keys() == set(Exit)
    table = (
        OPERATIONS.read_text(encoding="utf-8").partition("## Exit codes")[2].partition("\n## ")[0]
    )
    documented = {int(number) for number in re.findall(r"\b\d+\b", table.replace("`", " "))}
    assert documented >= {int(code) for code in Exit}
