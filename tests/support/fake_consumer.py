"""``gen-consumer``, and RQ's way to start it, with the stand-in where SGLang would be launched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import consumer.reporter
from consumer import start
from consumer.cli import main
from tests.support.fake_engine import FakeSglang

if TYPE_CHECKING:
    from typing import Any


def use_the_stand_in() -> None:
    real = start.engine_named
    start.engine_named = lambda name: FakeSglang() if name == "sglang" else real(name)


class Worker(consumer.reporter.Worker):
    def work(self, *args: Any, **options: Any) -> bool:
        use_the_stand_in()
        return super().work(*args, **options)


if __name__ == "__main__":
    use_the_stand_in()
    main()
