from __future__ import annotations

import itertools

import pytest

from consumer.engine.states import ARROWS, EngineState, transition


def test_every_arrow_of_the_table_is_taken_and_every_other_step_refused():
    for now, then in itertools.product(EngineState, EngineState):
        if then in ARROWS[now]:
            assert transition(now, then) is then
        else:
            with pytest.raises(RuntimeError, match=f"from {now} to {then}"):
                transition(now, then)


def test_every_state_can_be_reached_and_can_end_in_stopped():
    def reach(start: EngineState) -> set[EngineState]:
        seen, ring = {start}, {start}
        while ring:
            ring = set().union(*(ARROWS[state] for state in ring)) - seen
            seen |= ring
        return seen

    assert reach(EngineState.STOPPED) == set(EngineState)
    assert all(EngineState.STOPPED in reach(state) for state in EngineState)


def test_only_a_stop_leads_out_of_fatal():
    assert ARROWS[EngineState.FATAL] == {EngineState.STOPPED}
