from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from common.errors import EngineError, UsageError
from consumer.cli import command
from consumer.engine import engine_named, guard, llama_server, sglang_server
from consumer.engine.api import EngineSpec, check_ids
from consumer.engine.launch import (
    engine_environment,
    lighter_sglang,
    llamacpp_launch,
    sglang_launch,
)
from consumer.engine.llamacpp import gguf_file
from consumer.engine.sglang_flags import flags_for


def spec(**fields) -> EngineSpec:
    values = {"model": "m", "gpu": None, "url": None, "port": 31000, "api_key": "the-secret"}
    return EngineSpec(**{**values, "state_dir": Path("none"), **fields})


def test_the_key_is_in_the_environment_and_never_in_the_command_line():
    for launch in (
        sglang_launch(spec(), "/models/q", ()),
        llamacpp_launch(spec(), "/models/q.gguf", threads=2),
    ):
        assert not any("the-secret" in word for word in launch.argv)
        assert "the-secret" in launch.env.values()


def test_sglang_gets_address_metrics_limits_and_the_users_flags():
    launch = sglang_launch(spec(max_running=64, context=8192), "/models/q", ("--dtype", "auto"))
    line = " ".join(launch.argv)
    assert launch.argv[0] == sys.executable
    assert "--model-path /models/q --host 127.0.0.1 --port 31000 --enable-metrics" in line
    assert "--max-running-requests 64 --context-length 8192 --dtype auto" in line


def test_one_gpu_is_shown_to_the_engine_in_the_order_of_nvidia_smi():
    env = sglang_launch(spec(gpu=3), "m", ()).env
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("3", "PCI_BUS_ID")
    assert "CUDA_VISIBLE_DEVICES" not in sglang_launch(spec(), "m", ()).env


def test_llama_threads_do_not_spin():
    assert llamacpp_launch(spec(), "m.gguf", threads=2).env["OMP_WAIT_POLICY"] == "PASSIVE"


def test_llama_gets_slots_and_the_context_of_one_request():
    line = " ".join(llamacpp_launch(spec(max_running=8, context=512), "m.gguf", threads=2).argv)
    assert "--slots 8 --context 512 --threads 2" in line


@pytest.mark.parametrize("flag", ["--port", "--port=1", "--api-key", "--host", "--model-path"])
def test_flags_that_the_consumer_sets_itself_are_refused(flag):
    with pytest.raises(UsageError, match=flag.partition("=")[0]):
        sglang_launch(spec(), "m", (flag, "1"))


def test_the_engine_does_not_inherit_our_secrets():
    base = {"PATH": "/bin", "HF_TOKEN": "t", "GENQ_REDIS_URL": "r", "AWS_SECRET_ACCESS_KEY": "s"}
    assert engine_environment(base, {"A": "b"}) == {"PATH": "/bin", "HF_TOKEN": "t", "A": "b"}


def test_the_scripts_that_stand_alone_agree_on_the_keys_name():
    assert guard.KEY_VARIABLE == llama_server.KEY_VARIABLE == sglang_server.KEY_VARIABLE


def test_an_engine_that_is_not_there_names_the_step_that_brings_it():
    engine = engine_named("llamacpp")
    with pytest.raises(EngineError) as refusal:
        engine.launch(spec(model="/nowhere.gguf"))
    assert "smollm2" in refusal.value.fix


def test_unknown_engines_are_named():
    with pytest.raises(UsageError, match="'vllm'"):
        engine_named("vllm")


def test_a_bad_token_id_is_found_with_its_place():
    check_ids([0, 319], 320)
    with pytest.raises(ValueError, match="token id 320 at position 1"):
        check_ids([0, 320], 320)
    with pytest.raises(ValueError, match="token id -1 at position 0"):
        check_ids([-1, 3], 320)
    with pytest.raises(ValueError, match="no tokens"):
        check_ids([], 320)


def test_renamed_flags_are_given_as_the_installed_release_knows_them():
    flags = ("--cuda-graph-max-bs-decode=320", "--enable-linear-replayssm-spec", "--dtype", "auto")
    assert flags_for("0.5.17", flags) == flags_for("0.5.23", flags) == flags_for("", flags) == flags
    assert flags_for("0.5.13", flags) == (
        "--cuda-graph-max-bs=320",
        "--enable-gdn-replayssm-spec",
        "--dtype",
        "auto",
    )
    assert flags_for("0.5.16.post1", flags)[:2] == (flags[0], "--enable-gdn-replayssm-spec")


def test_a_model_that_is_missing_and_one_that_is_something_else_are_told_apart(tmp_path):
    with pytest.raises(EngineError, match=r"x\.gguf is not there"):
        gguf_file(str(tmp_path / "x.gguf"))
    with pytest.raises(EngineError, match=r"is not a \.gguf file"):
        gguf_file(str(tmp_path))
    (tmp_path / "blob").write_bytes(b"GGUF....")
    assert gguf_file(str(tmp_path / "blob")) == tmp_path / "blob"


@pytest.mark.skipif(importlib.util.find_spec("sglang") is not None, reason="SGLang is there")
def test_who_wants_the_small_model_without_sglang_is_told_of_the_other_engine():
    with pytest.raises(EngineError) as refusal:
        command.main(["--model", "smollm2", "--engine", "sglang"], standalone_mode=False)
    assert "--engine llamacpp" in refusal.value.fix


def lowered(*flags, fraction=None, running=None, **fields):
    found = lighter_sglang(spec(flags=flags, **fields), fraction=fraction, running=running)
    return found and (found[1], found[0].flags[len(flags) :])


@pytest.mark.row("B5")
def test_an_engine_out_of_memory_takes_a_smaller_share_of_it():
    """The flag of the user counts, else what the engine itself said; the last of two flags wins."""
    less = ("--mem-fraction-static", "0.9")
    assert lowered("--mem-fraction-static", "0.93", fraction=0.5) == (
        f"{less[0]} 0.93 -> 0.9",
        less,
    )
    assert lowered("--mem-fraction-static=0.93") == (f"{less[0]} 0.93 -> 0.9", less)
    assert lowered(fraction=0.903)[1] == ("--mem-fraction-static", "0.873")
    twice = ("--mem-fraction-static", "0.93", *less)
    assert lowered(*twice)[1] == ("--mem-fraction-static", "0.87")


@pytest.mark.row("B5")
def test_where_the_share_is_unknown_or_small_fewer_requests_run():
    assert lowered(running=40)[0] == "--max-running-requests 40 -> 30"
    assert lowered(fraction=0.52, max_running=8)[0] == "--max-running-requests 8 -> 6"
    fewer, _ = lighter_sglang(spec(max_running=64), fraction=None, running=40)
    assert "--max-running-requests 30" in " ".join(sglang_launch(fewer, "m", fewer.flags).argv)
    assert fewer.max_running is None, "the flag is given once"
    fewer, _ = lighter_sglang(spec(window=332), fraction=None, running=266)
    assert fewer.window is None, "it was measured with all 266"
    smaller, _ = lighter_sglang(spec(window=332), fraction=0.9, running=266)
    assert smaller.window == 332
    assert lowered() is None
    assert lowered(max_running=1) is None
