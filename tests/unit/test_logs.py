"""Logs: JSON off a terminal, and no secret gets out whoever put it there."""

from __future__ import annotations

import json
import subprocess
import sys

from common.telemetry.logs import mask


def test_passwords_in_urls_and_named_secrets_are_masked():
    event = mask(
        None, "info", {"event": "redis://user:planted@host/0 gone", "api_key": "planted", "n": 1}
    )
    assert "planted" not in str(event)
    assert event["n"] == 1


def test_what_is_nested_is_masked_too():
    event = mask(
        None,
        "info",
        {"event": "x", "request": {"api_key": "planted", "to": ["redis://:planted@h"]}},
    )
    assert "planted" not in str(event)


def test_traces_and_what_libraries_say_are_masked():
    code = (
        "from common.telemetry.logs import setup_logging; import structlog, logging\n"
        "for form in ('console', 'json'):\n"
        "    setup_logging(level='debug', form=form)\n"
        "    local = 'planted-local'\n"
        "    try:\n"
        "        raise ValueError('redis://:planted@host')\n"
        "    except ValueError:\n"
        "        structlog.get_logger().exception('ours')\n"
        "        logging.getLogger('theirs').exception('redis://:planted@host is gone')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.count("ValueError") == 4
    assert "planted" not in done.stderr


def test_lines_are_json_off_a_terminal():
    code = (
        "from common.telemetry.logs import setup_logging; import structlog;"
        "setup_logging(); structlog.get_logger().warning('hello', run='r', n=1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == ""
    line = json.loads(done.stderr)
    assert (line["event"], line["run"], line["n"], line["level"]) == ("hello", "r", 1, "warning")
