"""systemd units and the Slurm job: taken by their tools, hardened, and with time to drain."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest

from common.settings import Settings
from tests.support.tools import (
    AFTER_DRAIN_SECONDS,
    BIN,
    DEPLOY,
    ENGINE_END_SECONDS,
    KNOWN_VARIABLES,
    accepted,
    relative,
    run_tool,
)

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
BATCH = DEPLOY / "slurm" / "consumers.sbatch"


def unit_lines(path, name):
    return re.findall(rf"^{name}=(.*)$", path.read_text(), flags=re.MULTILINE)


def installed(path, folder):
    """A copy of a unit whose program is the one that is installed here."""
    text = path.read_text().replace("/opt/genq/bin", str(BIN))
    copy = folder / path.name.replace("@.", "@3.")
    copy.write_text(text)
    return copy


@pytest.mark.parametrize("unit", UNITS, ids=relative)
def test_systemd_takes_each_unit_and_refuses_a_spoilt_one(unit, tmp_path):
    copy = installed(unit, tmp_path)
    accepted("systemd-analyze", "verify", "--recursive-errors=yes", copy)
    copy.write_text(copy.read_text().replace("Type=notify", "Type=noitfy"))
    spoilt = run_tool("systemd-analyze", "verify", "--recursive-errors=yes", copy)
    assert spoilt.returncode != 0


@pytest.mark.parametrize("unit", UNITS, ids=relative)
def test_units_are_hardened(unit):
    # The consumer needs the cards' devices, and memory that is written and executed.
    limit = "20" if "consumer" in unit.name else "15"
    accepted("systemd-analyze", "security", "--offline=true", f"--threshold={limit}", unit)


@pytest.mark.parametrize("unit", UNITS, ids=relative)
def test_units_respect_our_exit_codes_and_beat(unit):
    (prevented,) = unit_lines(unit, "RestartPreventExitStatus")
    (success,) = unit_lines(unit, "SuccessExitStatus")
    assert {"2", "3", "7"} <= set(prevented.split())
    assert ("6" in prevented.split()) == ("consumer" in unit.name), "an engine that was given up"
    assert {"130", "143"} <= set(success.split())
    assert not {"4", "5", "1"} & set(prevented.split()), "an outage ends: it is tried again"
    assert unit_lines(unit, "Restart") == ["on-failure"]
    assert float(unit_lines(unit, "WatchdogSec")[0]) >= 30
    waits = Settings.model_fields["wait_seconds"].default
    assert float(unit_lines(unit, "TimeoutStartSec")[0]) > waits
    given = dict(line.split(":", 1) for line in unit_lines(unit, "LoadCredential"))
    asked = re.findall(r"^Environment=GENQ_\w+_FILE=%d/(.*)$", unit.read_text(), re.MULTILINE)
    assert sorted(asked) == sorted(given)


def test_the_consumer_s_unit_has_the_time_that_a_drain_takes():
    (unit,) = [path for path in UNITS if "consumer" in path.name]
    drain = Settings.model_fields["drain_seconds"].default
    assert drain + AFTER_DRAIN_SECONDS + ENGINE_END_SECONDS <= float(
        unit_lines(unit, "TimeoutStopSec")[0]
    )
    assert unit_lines(unit, "KillMode") == ["mixed"], "the engine is ended by its consumer"


@pytest.mark.parametrize("card", [0, 7, 10, 15])
def test_the_consumer_s_unit_gives_each_card_its_port(card, tmp_path):
    (unit,) = [path for path in UNITS if "consumer" in path.name]
    (started,) = unit_lines(unit, "ExecStart")
    program = tmp_path / "gen-consumer"
    program.write_text('#!/bin/sh\necho "$$" "$@"\n')
    program.chmod(0o755)
    # As systemd reads it: %i is the instance, $$ a dollar.
    words = shlex.split(started.replace("%i", str(card)).replace("$$", "$"))
    words[-1] = words[-1].replace("/opt/genq/bin", str(tmp_path))
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        said = process.communicate(timeout=30)[0].split()
    assert said[1:] == ["--gpu", str(card), "--metrics-port", str(9820 + card)]
    assert said[0] == str(process.pid), "systemd's signals and its watchdog are the consumer's"


# --- Slurm


def test_the_batch_job_leaves_time_for_a_drain():
    text = BATCH.read_text()
    (before,) = re.findall(r"^#SBATCH --signal=TERM@(\d+)$", text, flags=re.MULTILINE)
    (drain,) = re.findall(r"GENQ_DRAIN_SECONDS:-(\d+)\}", text)
    assert float(drain) + AFTER_DRAIN_SECONDS + ENGINE_END_SECONDS <= float(before)


def test_the_batch_job_starts_one_consumer_a_card(tmp_path):
    """Run it for real, with an srun that does as Slurm's: one task for each of two cards."""
    srun = tmp_path / "srun"
    srun.write_text(
        "#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\n"
        'for id in 0 1; do SLURM_LOCALID=$id "$@" || exit; done\n'
    )
    consumer = tmp_path / "bin" / "gen-consumer"
    consumer.parent.mkdir()
    consumer.write_text('#!/bin/bash\necho "$@"\nenv | grep ^GENQ_ | sort >&2\nexit "${CODE:-0}"\n')
    srun.chmod(0o755)
    consumer.chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path), "SLURM_JOB_ID": "7",
        "GENQ_MODEL": "m", "GENQ_STORE": "s3://b/p",
    }  # fmt: skip

    def submit(**more):
        return subprocess.run(
            ["bash", BATCH, tmp_path], env=env | more, capture_output=True, text=True,
            timeout=30, check=False,
        )  # fmt: skip

    done = submit()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"--gpu {n} --metrics-port {9820 + n}" for n in (0, 1)]
    assert {line.partition("=")[0] for line in done.stderr.splitlines()} <= KNOWN_VARIABLES
    assert submit(CODE="143").returncode == 0, "drained"
    assert submit(CODE="6").returncode == 6
