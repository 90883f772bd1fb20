"""The command line of the stand-in for SGLang: the real server's flags, and those of its faults."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tests.support.tiny_tokenizer import VOCAB_SIZE

CLIENT_LOOK_SECONDS = 4.0  # how often the real server looks whether its client is still there


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fake_sglang", allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE)
    parser.add_argument("--context-length", type=int)
    parser.add_argument("--max-running-requests", type=int, default=8)
    parser.add_argument("--max-mamba-cache-size", type=int, help="state slots, 5 a request")
    parser.add_argument("--max-queued-requests", type=int)
    parser.add_argument("--mem-fraction-static", type=float, default=0.9)
    parser.add_argument("--max-total-tokens", type=int, default=100_000)
    parser.add_argument("--token-seconds", type=float, default=0.001)
    parser.add_argument("--prefill-seconds", type=float, default=0.0)
    parser.add_argument("--answer-tokens", type=int, default=0, help="0: 8 to 63, by the prompt")
    parser.add_argument("--client-look-seconds", type=float, default=CLIENT_LOOK_SECONDS)
    parser.add_argument("--start-seconds", type=float, default=0.0)
    add_tuned(parser)
    parser.add_argument("--refuse", default="", help="print this and exit with code 1")
    parser.add_argument("--refuse-file", type=Path, help="refuse only while this file is there")
    parser.add_argument("--enable-deterministic-inference", action="store_true")
    parser.add_argument("--stubborn-child", action="store_true")
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--faults", default="{}", help="JSON, as for /fake/faults")
    args = parser.parse_args(argv)
    args.running = args.max_running_requests
    if args.max_mamba_cache_size is not None:
        args.running = min(args.running, args.max_mamba_cache_size // 5)
    if args.state_pool is not None:
        args.running = min(args.running, args.state_pool // (1 if args.disable_radix_cache else 5))
    misbehave(args, argv)
    return args


def add_tuned(parser: argparse.ArgumentParser) -> None:
    """What tuning turns. How many run, and so the speed, depends on the first of them."""
    parser.add_argument("--disable-radix-cache", action="store_true")
    parser.add_argument("--prefix-chunk", type=int, default=1, help="64: a hybrid's cache")
    parser.add_argument("--state-pool", type=int, help="slots: 5 a request, 1 without the cache")
    parser.add_argument("--disable-prefill-cuda-graph", action="store_true")
    parser.add_argument("--chunked-prefill-size")
    parser.add_argument("--cuda-graph-max-bs-decode", type=int)
    parser.add_argument("--min-free-slots-delay", type=int)
    parser.add_argument("--schedule-policy")
    parser.add_argument("--load-format")
    parser.add_argument("--request-seconds", type=float, default=0.0, help="of a step, each")
    parser.add_argument("--crash-with", help="exit with code 1 where one of these words is given")
    parser.add_argument("--hang-with", help="the same: no more steps after some requests")
    parser.add_argument("--lie-with", help="the same: twice as fast, and dishonest")


def misbehave(args: argparse.Namespace, argv: list[str]) -> None:
    args.hang_after = 0
    if args.crash_with in argv:
        args.refuse = "CUDA out of memory. Tried to allocate 2.00 GiB"
    if args.hang_with in argv:
        args.hang_after = 30
    if args.lie_with in argv:
        args.token_seconds /= 2
        args.faults = json.dumps({"dishonest": "crowd"})  # a path without the cache, too
