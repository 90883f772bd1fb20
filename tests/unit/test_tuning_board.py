"""A round of tuning as a person at a terminal sees it."""

from __future__ import annotations

from consumer.tuning.board import LiveBoard
from consumer.tuning.results import Outcome, Trial
from consumer.tuning.space import DEFAULT, Setting
from consumer.tuning.steady import Meter, Pace


def shown(monkeypatch) -> list[list[str]]:
    """Return the columns of the table while the third of three trials runs."""
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "100")
    with LiveBoard() as board:
        board.begin("default", DEFAULT, 1800.0)
        fast = {"tokens_per_second": 1754.2, "running": 49.0, "max_running": 49, "seconds": 121.0}
        board.end("default", Trial(Outcome.OK, **fast), 1754.2)
        board.begin("trial 0", Setting(("--chunked-prefill-size", "16384")), 1600.0)
        board.end("trial 0", Trial(Outcome.MEMORY, "no room", seconds=31.0), 1754.2)
        point = (("chunk", "auto"), ("radix", "off"))
        board.begin("trial 1", Setting(("--disable-radix-cache",), point=point), 1500.0)
        board.seen("ramp", Meter(8, Pace()))
        board.say("a line that would tear the table")
        table = board._table()
    return [[str(cell) for cell in column.cells] for column in table.columns]


def test_the_table_has_a_row_a_trial_and_marks_the_best(capsys, monkeypatch):
    labels, rates, running, seconds, states, settings = shown(monkeypatch)
    assert labels == ["default", "trial 0", "trial 1"]
    assert rates == ["1,754 *", "-", ""]
    assert running == ["49/49", "-", ""]
    assert seconds == ["121", "31", ""]
    assert states == ["ok", "memory", "ramp"]
    assert settings == ["the engine's own", "--chunked-prefill-size 16384", "radix=off"]
    left = capsys.readouterr().err
    assert "tuning, 25.0 min left" in left
    assert "1,754 *" in left
    assert "tear the table" not in left
