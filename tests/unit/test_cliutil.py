"""How commands end: three lines or one JSON object on stderr, and a documented code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from redis.exceptions import ResponseError

from common import errors
from common.cliutil import parse_bytes
from common.errors import Exit, GenqError
from common.ids import RunName
from common.queue.scripts import explain

PROGRAM = """
import click, sys
from common import errors
from common.cliutil import run_cli

@click.command()
@click.option("--json", is_flag=True)
def main(json):
    {body}

run_cli(main)
"""


def run(body, *argv, env=None):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=body), *argv],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=env,
    )


def test_what_is_no_number_is_told_without_click_s_own_words():
    for kind, plain in (("click.IntRange(1)", "whole number"), ("click.FloatRange(0)", "number")):
        body = f"click.Command('x', params=[click.Argument(['n'], type={kind})]).main(['abc'],"
        done = run(f"{body} standalone_mode=False)")
        assert (done.returncode, "range" in done.stderr) == (Exit.USAGE, False)
        assert f"'abc' is not a {plain}." in done.stderr


def every_error(root=GenqError):
    yield root
    for child in root.__subclasses__():
        yield from every_error(child)


@pytest.mark.parametrize("kind", [k for k in every_error() if k.__module__ == "common.errors"])
def test_each_error_has_a_documented_code_and_a_place_in_the_tree(kind):
    assert kind.__name__ in errors.__doc__
    assert kind.exit_code in Exit


def test_an_error_is_three_lines_and_its_code():
    done = run('raise errors.QueueError("What.", why="Why.", fix="Fix.")')
    assert done.returncode == Exit.QUEUE
    assert done.stdout == ""
    assert done.stderr.splitlines() == ["Error: What.", "  Why.", "  Fix."]


def test_an_error_is_one_json_object_with_json():
    done = run('raise errors.StoreError("What.", why="Why.", fix="Fix.")', "--json")
    assert done.returncode == Exit.STORE
    assert json.loads(done.stderr) == {
        "error": "StoreError",
        "exit_code": 5,
        "what": "What.",
        "why": "Why.",
        "fix": "Fix.",
    }


def test_a_bug_asks_for_a_report():
    done = run('raise RuntimeError("oops")')
    assert done.returncode == Exit.BUG
    assert "report it" in done.stderr


def test_an_interrupt_says_that_nothing_is_lost():
    done = run("raise KeyboardInterrupt")
    assert done.returncode == Exit.INTERRUPTED
    assert "Nothing is lost" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_flag_is_a_usage_error():
    assert run("pass", "--nope").returncode == Exit.USAGE


def test_a_returned_code_is_the_exit_code():
    assert run("return 8").returncode == Exit.DEAD_LETTERS
    assert run("return None").returncode == Exit.DONE


@pytest.mark.parametrize(
    ("text", "size"),
    [("64MiB", 64 << 20), ("1.5GB", 1_500_000_000), ("1000", 1000), ("3k", 3072), ("7 B", 7)],
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "x", "1XB", "MiB"])
def test_what_is_not_a_size_is_refused(text):
    with pytest.raises(click.BadParameter):
        parse_bytes(text)


ECHO = "[click.echo('x' * 100) for _ in range(10_000)]"


def test_a_reader_that_goes_away_is_no_error():
    program = [sys.executable, "-c", PROGRAM.format(body=ECHO)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
        assert writer.stdout
        assert writer.stderr
        writer.stdout.readline()
        writer.stdout.close()
        assert writer.stderr.read() == b""
        assert writer.wait(60) == Exit.DONE


def test_a_full_disk_behind_stdout_is_said_in_plain_words():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(body=ECHO)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == Exit.USAGE
    assert done.stderr.startswith("Error: There is no room left at standard output")
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_a_full_disk_below_a_named_file_is_said_with_its_name():
    body = "raise OSError(28, 'No space left on device', '/data/out.jsonl')"
    done = run(body)
    assert done.returncode == Exit.USAGE
    assert done.stderr.startswith("Error: There is no room left at /data/out.jsonl.\n")
    assert done.stderr.endswith("  Make room there, or name another place.\n")


def test_a_run_that_is_over_is_a_conflict_and_no_trouble_of_redis():
    error = explain(ResponseError("GENQ_CLOSED closed"), RunName("one"), "cancel")
    assert error.exit_code == Exit.CONFLICT
    assert "GENQ_" not in str(error)
    assert "it is finished" in error.what
    assert "verify one" in error.fix
    cancelled = explain(ResponseError("GENQ_CLOSED cancelled"), RunName("one"), "complete")
    assert "gen-producer load --run one" in cancelled.fix
