"""gen-producer's command line: help at once, on one screen, with examples."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from producer.cli import cli

HEAVY = ["redis", "minio", "pyarrow", "pydantic", "rich", "aiohttp", "rq", "orjson", "asyncio"]
COMMANDS = sorted(cli.commands)


@pytest.mark.parametrize("words", [["--help"], ["load", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(words):
    program = f"""
import sys
sys.argv = ["gen-producer", *{words!r}]
from producer.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code
print(*sorted(set(sys.modules) & set({HEAVY!r})), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stderr.strip() == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_one_screen_and_has_examples(command):
    text = CliRunner().invoke(cli, [command, "--help"], terminal_width=80).output
    assert "Examples:" in text
    assert text.count(f"gen-producer {command}") >= 2
    assert len(text.splitlines()) <= 45
    assert max(map(len, text.splitlines())) <= 84


def test_a_wrong_flag_exits_2():
    assert CliRunner().invoke(cli, ["load", "--runn", "x"]).exit_code == 2
