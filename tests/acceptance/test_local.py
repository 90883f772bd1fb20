"""gen-local as a stranger runs it: to the end, interrupted, killed, twice, side by side."""

from __future__ import annotations

import os
import re
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path

import duckdb
import psutil
import pytest

from common.errors import Exit
from deploy import processes
from deploy.stack import Stack
from tests.support.servers import eventually_sync

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "prompts.jsonl"
PROGRAM = Path(sys.executable).with_name("gen-local")
ROWS = 12
SHORT = ("--max-tokens", "20")  # answers
RUN_SECONDS = 150
# The engine's honesty has tests of its own; here each start of it would cost some seconds.
QUICK = {"GENQ_HONESTY": "false"}

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def place(tmp_path):
    """A fresh working folder with a data set in it; nothing may be left running there."""
    lines = EXAMPLES.read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "prompts.jsonl").write_text("".join(lines[:ROWS]), encoding="utf-8")
    yield tmp_path
    left = processes_in(tmp_path)
    processes.end_processes(left, term_seconds=1.0)
    assert left == []


def processes_in(place):
    """The processes that work in a folder or name it in their arguments."""
    found = []
    for process in psutil.process_iter():
        try:
            near = str(place) in process.cwd() or any(str(place) in a for a in process.cmdline())
            if near and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def start(place, *arguments, log="stderr.txt"):
    """Start gen-local; its messages go to a file that the test reads as they come."""
    with (place / log).open("wb") as stderr:
        return subprocess.Popen(
            [PROGRAM, *arguments],
            cwd=place,
            env={**os.environ, **QUICK},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )


def finish(process, seconds=RUN_SECONDS):
    output, _ = process.communicate(timeout=seconds)
    return output


def run(place, *argv):
    return subprocess.run(
        argv, cwd=place, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )


def said(place, log="stderr.txt"):
    return (place / log).read_text(encoding="utf-8")


def without_time(output):
    return re.sub(r"Done in [\d:]+", "", output)


def wait_for_answers(place):
    eventually_sync(lambda: re.search(rf" [1-9]\d* of {ROWS} answered", said(place)), RUN_SECONDS)


def check_results(place):
    """Every row was answered once, by the real model, with its settings."""
    folder = place / ".genq" / "prompts" / "results"
    assert (folder / "_SUCCESS").exists()
    rows = duckdb.sql(
        f"SELECT k, content, usage.completion_tokens AS tokens, engine "
        f"FROM read_parquet('{folder}/data/*.parquet') ORDER BY k"
    ).fetchall()
    assert [row[0] for row in rows] == list(range(ROWS))
    assert all(row[1].strip() and 1 <= row[2] <= 64 for row in rows)
    assert all(row[3].startswith("llamacpp") for row in rows)


@pytest.mark.engine
def test_a_fresh_folder_is_answered_and_the_printed_lines_open_the_results(place):
    process = start(place, "prompts.jsonl", *SHORT)
    output = finish(process)
    assert process.returncode == Exit.DONE, said(place)
    check_results(place)
    assert processes_in(place) == []

    messages = said(place)
    assert re.search(r"12 of 12 answered", messages)
    assert "kept but flagged" in messages
    assert "gen-producer requeue" not in messages  # its servers are gone by then
    assert "answers are truncated by --max-tokens. Longer ones: " in messages
    assert "rq info" in messages
    assert re.search(r"prompts +\|", messages)  # what `rq info` itself printed

    duckdb_line, datasets_line = [line for line in output.splitlines() if " -c " in line]
    shown = subprocess.check_output(duckdb_line, shell=True, cwd=place, text=True)
    assert all(row in shown for row in ("largest-ocean", "chat-001", "7000"))
    shown = subprocess.check_output(
        datasets_line,
        shell=True,
        cwd=place,
        text=True,
        stderr=subprocess.DEVNULL,
        env={"HF_HOME": str(place / "hf"), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"},
    )
    assert "num_rows: 12" in shown

    again = start(place, "prompts.jsonl", *SHORT, "--keep")  # done already: it only says so
    assert without_time(finish(again)) == without_time(output)
    assert again.returncode == Exit.DONE
    folder = place / ".genq" / "prompts"
    assert sorted(processes.members(str(folder))) == ["redis", "s3"]
    look = f". {folder / 'env'}; gen-producer verify prompts && rq info"
    bare = {"PATH": "/usr/bin:/bin"}  # a shell that knows nothing of the virtual environment
    assert "proven" in subprocess.check_output(look, shell=True, cwd=place, text=True, env=bare)
    assert run(place, PROGRAM, "--run", "prompts", "--stop").returncode == Exit.DONE


@pytest.mark.engine
def test_interrupted_and_killed_it_goes_on_with_the_command_that_it_named(place):
    process = start(place, "prompts.jsonl", "--max-tokens", "40")  # time for an interrupt
    wait_for_answers(place)
    process.send_signal(signal.SIGINT)
    finish(process, 60)
    assert process.returncode == Exit.INTERRUPTED, said(place)
    last = said(place).splitlines()[-1]
    assert last.startswith("Stopped.")
    assert "nothing is lost" in last
    assert processes_in(place) == []

    command = shlex.split(last.partition("Go on with: ")[2])
    process = start(place, *command[1:], log="second.txt")
    eventually_sync(lambda: "already loaded" in said(place, "second.txt"), RUN_SECONDS)
    process.kill()
    finish(process, 30)
    # at once: the warden may still be busy
    process = start(place, *command[1:], log="third.txt")
    finish(process)
    assert process.returncode == Exit.DONE, said(place, "third.txt")
    check_results(place)


@pytest.mark.slow
@pytest.mark.engine
def test_results_may_be_jsonl(place):
    process = start(place, "prompts.jsonl", "--limit", "3", "--format", "jsonl.zst")
    output = finish(process)
    assert process.returncode == Exit.DONE, said(place)
    line = next(line for line in output.splitlines() if "duckdb" in line)
    shown = subprocess.check_output(line, shell=True, cwd=place, text=True)
    assert all(row in shown for row in ("largest-ocean", "chat-001", "7000"))


def serve(place, run, log):
    """Serve a stack that holds nothing yet."""
    stack = Stack(place / ".genq" / run)
    stack.claim()
    stack.close()
    (stack.folder / "stack.json").write_text("{}", encoding="utf-8")
    process = start(place, "--run", run, "--serve", log=log)
    eventually_sync(lambda: "Ctrl-C stops them" in said(place, log), 60)
    return process


def stop(process, number=signal.SIGINT):
    process.send_signal(number)
    process.communicate(timeout=100)
    return process.returncode


def test_a_folder_has_one_owner_and_two_stacks_do_not_meet(place):
    one = serve(place, "one", "one.txt")
    refused = run(place, PROGRAM, "--run", "one", "--serve")
    assert refused.returncode == Exit.CONFLICT
    assert f"process {one.pid}" in refused.stderr
    two = serve(place, "two", "two.txt")
    env = [(place / ".genq" / name / "env").read_text() for name in ("one", "two")]
    assert not set(re.findall(r"127\.0\.0\.1:\d+", env[0])) & set(
        re.findall(r"127\.0\.0\.1:\d+", env[1])
    )
    assert stop(one) == Exit.DONE
    assert sorted(processes.members(str(place / ".genq" / "two"))) == ["redis", "s3"]
    assert stop(two) == Exit.DONE


def test_secrets_are_private_and_in_no_process_list(place):
    process = serve(place, "demo", "one.txt")
    folder = place / ".genq" / "demo"
    try:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for name in ("stack.json", "env"):
            assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
        secret = re.search(r"GENQ_S3_SECRET_KEY='?([\w-]+)", (folder / "env").read_text()).group(1)
        password = re.search(r"redis://:([\w-]+)@", (folder / "env").read_text()).group(1)
        for running in processes_in(place):
            arguments = " ".join(running.cmdline())
            assert secret not in arguments
            assert password not in arguments
        assert secret not in said(place, "one.txt")
        assert password not in said(place, "one.txt")
    finally:
        stop(process)


def test_what_even_the_warden_could_not_end_is_ended_by_the_next_start(place):
    process = serve(place, "demo", "one.txt")
    for warden in psutil.Process(process.pid).children():
        if "processes.py" in " ".join(warden.cmdline()):
            warden.kill()
    process.kill()
    process.communicate(timeout=100)
    assert sorted(processes.members(str(place / ".genq" / "demo"))) == ["redis", "s3"]
    ended = run(place, PROGRAM, "--run", "demo", "--stop")
    assert ended.returncode == Exit.DONE
    assert "Ended 2 processes" in ended.stderr


def test_sigterm_ends_it_as_ctrl_c_does(place):
    process = serve(place, "demo", "one.txt")
    assert stop(process, signal.SIGTERM) == Exit.DONE


def test_a_data_set_that_is_not_there_is_said_and_nothing_is_left(place):
    process = start(place, "nowhere.jsonl")
    finish(process, 60)
    assert process.returncode == Exit.INPUT, said(place)
    assert "nowhere.jsonl is not there" in said(place)
    assert not (place / ".genq").exists()


def test_a_data_set_that_cannot_be_loaded_leaves_no_run_and_its_remedy_works(place):
    (place / "bad.jsonl").write_text('{"prompt": "Say hi."}\n{"prompt"\n', encoding="utf-8")
    done = run(place, PROGRAM, "bad.jsonl")
    assert done.returncode == Exit.INPUT
    assert "--on-error skip" in done.stderr
    assert not (place / ".genq").exists()


@pytest.mark.slow
@pytest.mark.engine
def test_rows_that_cannot_be_used_are_skipped_and_a_rerun_names_the_data_set(place):
    (place / "bad.jsonl").write_text('{"prompt": "Say hi."}\n{"prompt"\n', encoding="utf-8")
    done = run(place, PROGRAM, "bad.jsonl", "--on-error", "skip", "--max-tokens", "1")
    assert done.returncode == Exit.DONE, done.stderr
    again = run(place, PROGRAM, "--run", "bad")
    assert "Longer ones: " in again.stderr, again.stderr
    assert " bad.jsonl --run bad-2 --max-tokens " in again.stderr


@pytest.mark.parametrize("model", ["qwen", "prompts.jsonl"])
def test_a_model_that_cannot_be_served_is_refused_before_anything_starts(place, model):
    done = run(place, PROGRAM, "prompts.jsonl", "--model", model)
    assert done.returncode == Exit.ENGINE
    assert done.stderr.startswith(f"Error: {model} is not ")
    assert "--model smollm2" in done.stderr
    assert len(done.stderr.splitlines()) == 3
    assert not (place / ".genq").exists()


@pytest.mark.parametrize("flag", ["--serve", "--stop"])
def test_a_stack_that_was_never_started_is_not_made_up(place, flag):
    for name in ("one", "two"):
        (place / ".genq" / name).mkdir(parents=True)
        (place / ".genq" / name / "stack.json").write_text("{}", encoding="utf-8")
    done = run(place, PROGRAM, "--run", "other", flag)
    assert done.returncode == Exit.USAGE
    assert "one, two" in done.stderr
    assert f"gen-local --run NAME {flag}" in done.stderr  # none of them is near
    assert not (place / ".genq" / "other").exists()
    done = run(place, PROGRAM, "--run", "twoo", flag)
    assert ".genq/twoo: did you mean two?" in done.stderr
    assert f"gen-local --run two {flag}" in done.stderr
    done = run(place, PROGRAM, flag)
    assert done.returncode == Exit.USAGE
    assert "one, two" in done.stderr
    assert f"gen-local --run NAME {flag}" in done.stderr


@pytest.mark.slow
@pytest.mark.engine
def test_another_setting_under_the_same_name_gets_a_command_of_gen_local(place):
    process = start(place, "prompts.jsonl", "--limit", "4", "--max-tokens", "2")
    finish(process)
    assert process.returncode == Exit.DONE, said(place)
    assert "answers are truncated by --max-tokens" in said(place)
    again = start(place, "prompts.jsonl", "--limit", "4", "--max-tokens", "3", log="again.txt")
    finish(again)
    assert again.returncode == Exit.CONFLICT
    words = "prompts.jsonl --limit 4 --max-tokens 3"
    assert f"{words} --run prompts-2" in said(place, "again.txt")
    assert "rm -r .genq/prompts && " in said(place, "again.txt")
    assert "gen-producer load" not in said(place, "again.txt")


def test_without_anything_to_do_it_says_what_to_type(place):
    done = run(place, PROGRAM)
    assert done.returncode == Exit.USAGE
    assert "gen-local prompts.jsonl" in done.stderr
