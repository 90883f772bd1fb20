"""``gen-consumer``, and RQ's way to start it, with the stand-in where SGLang would be launched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import consumer.reporter
from consumer import cli, start
from consumer.tuning import check, tune
from tests.support.fake_engine import FakeSglang

if TYPE_CHECKING:
    from typing import Any


def use_the_stand_in() -> None:
    real = start.engine_named
    for module in (start, check, tune):
        module.engine_named = lambda name: FakeSglang() if name == "sglang" else real(name)


class Worker(consumer.reporter.Worker):
    def work(self, *args: Any, **options: Any) -> bool:
        use_the_stand_in()
        return super().work(*args, **options)


def main() -> None:
    use_the_stand_in()
    cli.main()


if __name__ == "__main__":
    main()
