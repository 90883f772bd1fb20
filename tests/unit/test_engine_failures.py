from __future__ import annotations

import pytest

from consumer.engine.failures import last_words, recognise
from tests.support.captured import FIXTURES


def captured_log(name: str) -> list[str]:
    return (FIXTURES / f"{name}.txt").read_text().splitlines()


@pytest.mark.row("B4")
def test_a_real_start_without_memory_names_the_flag():
    lines = captured_log("log_no_memory")
    failure = recognise(lines)
    assert failure is not None
    assert "--mem-fraction-static" in failure.fix
    assert not failure.lasting
    assert "leave no GPU memory" in last_words(lines)


@pytest.mark.row("B5")
def test_a_real_device_assert_points_to_the_tokenizer():
    failure = recognise(captured_log("log_device_assert"))
    assert failure is not None
    assert "token id" in failure.cause


def test_a_log_of_a_good_start_is_no_failure():
    assert recognise(captured_log("log_ready")) is None


@pytest.mark.row("B5")
@pytest.mark.parametrize(
    ("line", "lasting"),
    [
        ("launch_server.py: error: unrecognized arguments: --mamba-ratio 3", True),
        ("ModuleNotFoundError: No module named 'sglang'", True),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", False),
        ("RuntimeError: CUDA error: GPU is lost", True),
        ("RuntimeError: The state cache is too small to serve any requests.", False),
        ("OSError: [Errno 98] error while attempting to bind on address: address in use", False),
    ],
)
def test_known_texts(line, lasting):
    failure = recognise(["noise", line, "more noise"])
    assert failure is not None
    assert failure.lasting is lasting
    assert failure.fix


def test_the_settings_of_a_server_that_died_young_are_no_cause():
    settings = "[2026-11-29 13:11:18] server_args=ServerArgs(watchdog_timeout=300, stop='is lost')"
    lines = [settings, "RuntimeError: Rank 0 scheduler died during initialization (exit code: 1)."]
    assert recognise(lines) is None
    hung = "[2026-11-29 13:16:21] Watchdog timeout (self.watchdog_timeout=300)"
    assert "watchdog" in recognise([settings, hung]).cause


def test_last_words_without_any_error_are_the_last_lines():
    assert last_words([f"line {n}" for n in range(100)], limit=3) == "line 97\nline 98\nline 99"
    assert last_words([]) == ""
