"""The catalogue of messages, those of engines: starts that fail, and cards that somebody has.

The command is the real one, and so are the processes that it starts; in SGLang's place there is
the stand-in, which says what the real one was seen to say.
"""

from __future__ import annotations

import re
import shlex
import socket
from dataclasses import dataclass
from functools import partial

import pytest

from common.errors import EngineError, Exit
from consumer import start
from consumer.engine.supervisor import StartBudget
from tests.faults.typist import message
from tests.support.captured import FIXTURES
from tests.support.fake_engine import FakeSglang
from tests.support.tiny_tokenizer import build_model_folder

row = pytest.mark.row
NO_ROOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"
    " capacity of 139.80 GiB of which 1.12 GiB is free. Process 4711 has 138.67 GiB memory in use."
)
NO_ROOM_FOR_CACHE = (FIXTURES / "log_no_memory.txt").read_text()
TAKEN = (
    "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 31000):"
    " address already in use"
)


@dataclass(frozen=True)
class Case:
    name: str
    flags: tuple[str, ...]  # of the engine
    text: str


CASES = (
    Case(
        "a model that does not fit",
        ("--refuse", NO_ROOM),
        (
            "Error: The engine failed 2 times in a row: it ended with code 1.\n"
            "  The GPU ran out of memory.\n"
            f"  {NO_ROOM}\n"
            "  Lower --mem-fraction-static or --max-running-requests, and look for other processes"
            " on the card with nvidia-smi."
        ),
    ),
    Case(
        "a model that leaves no room for its cache",
        ("--refuse", NO_ROOM_FOR_CACHE),
        (
            "Error: The engine failed 2 times in a row: it ended with code 1.\n"
            "  The weights leave too little GPU memory for the cache.\n"
            '    File "site/sglang/srt/mem_cache/kv_cache_configurator.py", line 1647,'
            " in _profile_available_bytes\n"
            "      raise ValueError(\n"
            "  ValueError: Loaded weights leave no GPU memory for the KV cache under"
            " --mem-fraction-static=0.903. Raise --mem-fraction-static above 0.408 (minimum viable"
            " = 1 - available/pre = 0.4073). If using speculative decoding, draft weights are now"
            " counted.\n"
            "  [2026-11-29 13:20:28] Received sigquit from a child process. It usually means the"
            " child failed.\n"
            "  [2026-11-29 13:20:28] kill_process_tree called: parent_pid=6810,"
            " include_parent=True, pid=6810\n"
            "  Raise --mem-fraction-static; with speculative decoding rather lower"
            " --max-running-requests; and look for other processes on the card with nvidia-smi.\n"
            "  What fits: gen-consumer explain --model MODEL -- FLAGS"
        ),
    ),
    Case(
        "an unknown flag",
        ("--no-such-flag",),
        (
            "Error: The engine failed: it ended with code 2.\n"
            "  The engine does not know one of its flags.\n"
            "  fake_sglang: error: unrecognized arguments: --no-such-flag\n"
            "  Remove or correct the flag named above; flags change between releases."
        ),
    ),
    Case(
        "a port that was taken in between",
        ("--refuse", TAKEN),
        (
            "Error: The engine failed 2 times in a row: it ended with code 1.\n"
            "  Another process has the engine's port.\n"
            f"  {TAKEN}\n"
            "  Start gen-consumer again: it takes a port that is free then."
            "  Who has this one: ss -ltnp"
        ),
    ),
)
USAGE = re.compile(r"\n +\[--.*")  # the end of the flags that argparse lists first


@pytest.fixture
def consume(type_in, tmp_path, monkeypatch):
    """Type `gen-consumer` for a small model, with the stand-in, and two starts without pauses."""
    monkeypatch.setattr(start, "engine_named", lambda _name: FakeSglang())
    brief = partial(StartBudget, attempts=2, backoff_base_seconds=0.01, kill_seconds=0.1)
    monkeypatch.setattr(start, "StartBudget", brief)
    model = build_model_folder(tmp_path / "tiny-model")

    def consume(*flags: str) -> tuple[int, str]:
        return type_in(shlex.join(["gen-consumer", "--model", str(model), "--", *flags]))

    return consume


@row("B4")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_start_that_fails_says_what_why_and_the_way_out(case, consume, type_in):
    code, said = consume(*case.flags)
    assert (code, USAGE.sub("", message(said))) == (Exit.ENGINE, case.text)
    assert [type(error) for error in type_in.shown] == [EngineError]
    assert "Traceback" not in said


@row("B4")
def test_a_port_that_another_process_has_is_named(consume, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setattr(start, "free_port", lambda: port)
        code, said = consume()
    assert (code, message(said).replace(str(port), "PORT")) == (
        Exit.ENGINE,
        (
            "Error: The engine failed 2 times in a row: Port PORT on 127.0.0.1 is taken.\n"
            "  Another process listens there, so that the engine cannot.\n"
            "  Start gen-consumer again: it takes a port that is free then."
            "  Who has this one: ss -ltnp 'sport = :PORT'"
        ),
    )


@row("A5")
async def test_a_second_process_for_a_gpu_ends_with_code_7_and_names_the_first(world):
    with world.consume("--gpu", "0") as first:
        first.wait_for('"state": "starting"', 60)  # it has the card
        with world.consume("--gpu", "0", log="second.log") as second:
            assert second.wait(100) == Exit.CONFLICT
        first.wait_for('"state": "ready"', 60)  # and was not disturbed
        said = message(second.log.read_text())
        lock = world.settings.state_dir / "engines"
        assert re.sub(rf"{lock}/\S+\.lock", "LOCK", said) == (
            f"Error: Another consumer has GPU 0: process {first.process.pid} on"
            f" {socket.gethostname()}.\n"
            "  It holds LOCK.\n"
            "  Stop that consumer first, or give this one another GPU with --gpu."
        )
