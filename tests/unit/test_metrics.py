"""Metrics: their names, the page that shows them, and who may reach it."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
import sys
import threading
import types

import pytest
from structlog.testing import capture_logs

from common.errors import ConflictError, Exit, UsageError
from common.settings import load_settings
from common.telemetry import probe, pulse
from common.telemetry.catalogue import SERVICES, Metric, listing
from common.telemetry.metrics import render, serve_metrics
from common.telemetry.readings import Histogram, Readings
from consumer import start
from consumer.engine.gpu_health import GpuProbe
from deploy.embedded import free_ports
from producer.console import Console
from producer.exporter import show_list
from tests.support.pages import Page, fetch

METRICS = [metric for metrics in SERVICES.values() for metric in metrics]
UNITS = ("seconds", "bytes", "tokens", "items", "ratio", "celsius", "watts", "requests")
COUNTED = ("starts", "tries", "leases", "retractions", "parts", "results", "calls", "looks", *UNITS)
FLAGS = ("info", "state", "status", "up", "starved", "away", "broken", "suspended", "ok")
PLAIN = (
    "throttled",
    "failing",
    "slots",
    "priority",
    "workers",
    "problems",
    "clients",
    "second",
    "starts",
)
LABELS = {
    "bound", "gpu", "model", "version", "state", "verdict", "reason", "run", "service", "format",
    "place", "status", "class", "worker",
}  # fmt: skip
TOY = (
    Metric("genq_toy_items", "gauge", "Toys", ("run",)),
    Metric("genq_toy_made_total", "counter", "Toys made"),
    Metric("genq_toy_seconds", "histogram", "Time of one toy", ("run",)),
)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_follow_the_conventions(metric):
    assert re.fullmatch(r"genq(_[a-z]+)+", metric.name)
    assert metric.help[0].isupper() or metric.help[0].isdigit()
    assert not metric.help.endswith(".")
    assert (metric.kind == "counter") == metric.name.endswith("_total")
    assert set(metric.labels) <= LABELS
    unit = metric.name.removesuffix("_total").rpartition("_")[2]
    assert unit in (COUNTED if metric.kind == "counter" else (*UNITS, *FLAGS, *PLAIN))


def test_no_name_is_spelled_twice():
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_a_page_shows_values_and_the_help_of_what_has_none():
    read = Readings(TOY)
    read.set("genq_toy_items", 3, run="one")
    read.add("genq_toy_items", 2, run="one")
    read.set("genq_toy_items", None, run="two")
    page = Page(render(read)[0].decode())
    assert page("genq_toy_items", run="one") == 5
    assert page.labels("genq_toy_items") == [{"run": "one"}]
    page.agrees_with(TOY)
    assert "# HELP genq_toy_made_total Toys made" in page.text


def test_a_histogram_counts_up():
    histogram, read = Histogram((1.0, 10.0)), Readings(TOY)
    for seconds in (0.5, 1.0, 3.0, 99.0):
        histogram.observe(seconds)
    read.histogram("genq_toy_seconds", histogram, run="one")
    page = Page(render(read)[0].decode())
    counts = [page("genq_toy_seconds_bucket", run="one", le=le) for le in ("1.0", "10.0", "+Inf")]
    assert counts == [2, 3, 4]
    assert page("genq_toy_seconds_sum", run="one") == 103.5
    assert page("genq_toy_seconds_count", run="one") == 4


@pytest.mark.parametrize("labels", [{}, {"run": "one", "item": "7"}])
def test_labels_that_are_not_in_the_catalogue_are_refused(labels):
    with pytest.raises(KeyError):
        Readings(TOY).set("genq_toy_items", 1, **labels)


def settings_on(port, **more):
    return load_settings(metrics_port=port, **more)


def toys():
    return Readings(TOY)


def test_metrics_and_health_are_served_on_loopback_alone():
    (port,) = free_ports(1)
    alive = [True]
    with capture_logs() as logs, serve_metrics(settings_on(port), toys, healthy=lambda: alive[0]):
        assert fetch(port)[0] == 200
        assert fetch(port, "/healthz") == (200, "ok\n")
        assert fetch(port, "/else")[0] == 404
        alive[0] = False
        assert fetch(port, "/healthz")[0] == 503
        with socket.socket() as other:  # free on the wide address: not taken by us
            other.bind(("127.0.0.2", port))
        taken = pytest.raises(ConflictError, match="cannot be served")
        with taken as caught, serve_metrics(settings_on(port), toys):
            pass
        assert caught.value.fix.startswith("Choose another --metrics-port,")
        with taken as caught, serve_metrics(settings_on(port), toys, flag="--port"):
            pass
        assert caught.value.fix.startswith("Choose another --port,")
    assert [log for log in logs if log["log_level"] == "warning"] == []
    with pytest.raises(OSError, match="refused"):
        fetch(port)


def test_a_service_without_a_port_says_that_it_shows_no_metrics():
    with capture_logs() as logs, serve_metrics(settings_on(None), toys):
        pass
    (said,) = logs
    assert (said["event"], said["log_level"]) == ("metrics.off", "info")
    assert "--metrics-port" in said["fix"]


def test_a_client_that_hangs_up_is_no_trouble(capfd):
    (port,) = free_ports(1)
    asked, gone = threading.Event(), threading.Event()

    def slowly():
        asked.set()
        assert gone.wait(60)
        read = Readings(TOY)
        for n in range(60_000):  # more than the system buffers
            read.set("genq_toy_items", 1, run=f"{n:0100}")
        return read

    with serve_metrics(settings_on(port), slowly):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert asked.wait(60)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.set()
        assert fetch(port, "/healthz")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_a_wider_address_is_warned_about(monkeypatch):
    (port,) = free_ports(1)
    monkeypatch.setenv("GENQ_METRICS_HOST", "0.0.0.0")
    with capture_logs() as logs, serve_metrics(settings_on(port), toys):
        assert fetch(port)[0] == 200
    (warning,) = [log for log in logs if log["log_level"] == "warning"]
    assert "without a login" in warning["event"]
    assert "GENQ_METRICS_HOST" in warning["fix"]


def test_an_address_of_another_machine_is_refused(monkeypatch):
    monkeypatch.setenv("GENQ_METRICS_HOST", "192.0.2.1")
    with pytest.raises(UsageError) as caught, serve_metrics(settings_on(9), toys):
        pass
    assert "GENQ_METRICS_HOST" in caught.value.why


def test_each_consumer_of_a_pool_has_a_port_of_its_own(monkeypatch):
    asked = []

    async def serve(settings, options, **_):
        asked.append((options.gpu, settings.metrics_port))
        if options.gpu < 3:
            raise ConflictError("taken")
        return Exit.DONE

    monkeypatch.setattr(start, "serve", serve)
    start.serve_for_pool(load_settings(gpus="1,3", metrics_port=9820), None, [], burst=True)
    start.serve_for_pool(load_settings(gpus="3"), None, [], burst=True)
    assert asked == [(1, 9821), (3, 9823), (3, None)]


def test_without_a_port_nothing_listens():
    with serve_metrics(settings_on(None), toys):
        pass


def test_the_list_is_the_catalogue_in_words_and_as_data(capsys):
    show_list(Console(json=True))
    data = json.loads(capsys.readouterr().out)
    assert data == {"version": 1, "metrics": json.loads(json.dumps(listing()))}
    show_list(Console())
    assert len(capsys.readouterr().out.splitlines()) == len(METRICS)


@pytest.fixture
def manager(monkeypatch, tmp_path):
    """A service manager's socket, as systemd makes it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listening


async def test_the_service_manager_hears_that_we_are_ready_alive_and_stopping(manager):
    def hear():
        return asyncio.to_thread(manager.recv, 100)

    async with pulse.beating() as beat:
        assert [await hear(), await hear()] == [b"READY=1", b"WATCHDOG=1"]
        assert beat.alive
    assert await hear() == b"STOPPING=1"


def test_a_manager_that_is_gone_is_no_trouble(monkeypatch, tmp_path):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    assert not pulse.notify("READY=1")
    monkeypatch.delenv("NOTIFY_SOCKET")
    assert not pulse.notify("READY=1")


def test_an_abstract_socket_is_known_by_its_sign(monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0genq-test-notify")
        monkeypatch.setenv("NOTIFY_SOCKET", "@genq-test-notify")
        assert pulse.notify("STATUS=x")
        assert listening.recv(100) == b"STATUS=x"


def test_a_loop_that_does_not_turn_is_not_alive(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(pulse.time, "monotonic", lambda: now[0])
    beat = pulse.Pulse()
    assert beat.alive
    now[0] += pulse.DEAD_SECONDS
    assert not beat.alive


def test_the_probe_tells_health_by_its_exit_code(monkeypatch, capsys):
    (port,) = free_ports(1)
    alive = [True]
    monkeypatch.setattr(sys, "argv", ["probe"])
    assert probe.main() == 2
    monkeypatch.setenv(probe.PORT_VARIABLE, str(port))
    assert probe.main() == 1
    with serve_metrics(settings_on(port), toys, healthy=lambda: alive[0]):
        assert probe.main() == 0
        alive[0] = False
        assert probe.main() == 1
    assert "does not turn" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["127.0.0.2", "0.0.0.0"])
def test_the_probe_asks_where_the_service_listens(monkeypatch, host):
    (port,) = free_ports(1)
    monkeypatch.setenv("GENQ_METRICS_HOST", host)
    monkeypatch.setattr(sys, "argv", ["probe", str(port)])
    with serve_metrics(settings_on(port), toys):
        assert probe.main() == 0


# --- cards


def nvml(**more):
    """NVML as its library answers; names and units are those of nvidia-ml-py 13."""
    card = types.ModuleType("pynvml")
    known = {
        "Init": lambda: None,
        "DeviceGetHandleByIndex": lambda gpu: gpu,
        "DeviceGetMemoryInfo": lambda _: types.SimpleNamespace(used=3 << 30, total=80 << 30),
        "DeviceGetUtilizationRates": lambda _: types.SimpleNamespace(gpu=87),
        "DeviceGetTemperature": lambda _, __: 61,
        "DeviceGetPowerUsage": lambda _: 512_000,
        "DeviceGetCurrentClocksEventReasons": lambda _: 0x4 | 0x20,
    }
    for name, answer in (known | more).items():
        setattr(card, f"nvml{name}", answer)
    return card


def lost(_):
    raise RuntimeError("GPU is lost")


def test_a_card_is_read_and_its_loss_is_seen(monkeypatch):
    driver = nvml()
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    card = GpuProbe(3)
    health = card.look()
    assert (health.up, health.utilization, health.power_watts) == (True, 0.87, 512.0)
    assert health.throttled == {"power_cap", "sw_thermal"}
    driver.nvmlDeviceGetHandleByIndex = lost
    assert card.look().up is False


def test_what_a_driver_does_not_tell_is_left_out(monkeypatch):
    older = {
        "DeviceGetPowerUsage": lost,
        "DeviceGetCurrentClocksEventReasons": lost,
        "DeviceGetCurrentClocksThrottleReasons": lambda _: 0x8,
    }
    monkeypatch.setitem(sys.modules, "pynvml", nvml(**older))
    health = GpuProbe(3).look()
    assert (health.up, health.power_watts, health.throttled) == (True, None, {"hw_slowdown"})


def test_without_a_card_or_a_driver_nothing_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert GpuProbe(3).look() is None
    assert GpuProbe(None).look() is None
