from __future__ import annotations

import pytest

from common.errors import QueueAwayError, QueueError, StoreAwayError
from common.patience import once_there


def failing(*errors):
    left = list(errors)

    async def call():
        if left:
            raise left.pop(0)
        return "there"

    return call, left


async def test_a_server_that_comes_up_is_waited_for():
    call, _ = failing(QueueAwayError("not yet"), StoreAwayError("not yet"))
    assert await once_there(call, seconds=30) == "there"


async def test_what_waiting_cannot_heal_is_raised_at_once():
    call, left = failing(QueueError("wrong password"), QueueAwayError("never asked"))
    with pytest.raises(QueueError, match="wrong password"):
        await once_there(call, seconds=30)
    assert len(left) == 1


async def test_the_wait_has_an_end():
    call, left = failing(*[QueueAwayError("down")] * 100)
    with pytest.raises(QueueAwayError):
        await once_there(call, seconds=0.3)
    assert len(left) < 99
    with pytest.raises(QueueAwayError):
        await once_there(call, seconds=0)
