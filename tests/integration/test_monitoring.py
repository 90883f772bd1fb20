"""Other people's monitoring beside ours: a real Prometheus, and rq-exporter. Nothing changes."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import subprocess
import sys
from contextlib import AsyncExitStack, ExitStack, contextmanager
from urllib.parse import quote

import pytest
import yaml

from common.telemetry.metrics import serve_metrics
from consumer.sink.metrics import SinkMetrics
from consumer.sink.service import SinkService
from deploy.embedded import free_ports
from producer.exporter import Exporter
from tests.support.consumers import world_of
from tests.support.dashboards import DASHBOARDS
from tests.support.fake_engine import running_fake
from tests.support.pages import Page, fetch
from tests.support.queues import RUN
from tests.support.servers import eventually
from tests.support.sinks import load_job, local_lab
from tests.support.tools import BIN, DEPLOY, tool

QUERIES = {
    f"{name}: {panel.title}: {query}": query
    for name, dashboard in DASHBOARDS.items()
    for panel in dashboard.panels
    for query in panel.queries
}
# There is no card here, the engine is a stand-in, nothing failed, what lasts an hour has not,
# and nothing is left of a run that ends within seconds (see test_endpoints.py).
EMPTY = re.compile(
    "genq_gpu_|state_slots|kv_tokens|state_usage|accepted_tokens"
    "|memory_limit_bytes > 0|of_peers|ratio1h|commit_timestamp|remaining_seconds"
)


@contextmanager
def running(argv, **env):
    process = subprocess.Popen(
        argv, env={**os.environ, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def prometheus(folder, targets):
    """A Prometheus on our own configuration, with other targets and a quicker clock."""
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = dict.fromkeys(("scrape_interval", "evaluation_interval"), "1s")
    config["scrape_configs"] = [
        {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{at}"]}]}
        for job, at in targets.items()
    ]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    for name in config["rule_files"]:
        text = (DEPLOY / "prometheus" / name).read_text()
        (folder / name).write_text(text.replace("interval: 15s", "interval: 1s"))
    (port,) = free_ports(1)
    flags = (
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    with running([tool("prometheus"), *flags]):
        yield lambda query: ask(port, query)


def ask(port, query):
    """Return what a query answers, as a dashboard asks it with all runs and cards chosen."""
    query = re.sub(r"\$\w+", ".*", query)
    asking = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        asking.request("GET", f"/api/v1/query?query={quote(query)}")
        answer = json.loads(asking.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return []
    finally:
        asking.close()
    assert answer["status"] == "success", (query, answer)
    return answer["data"]["result"]


async def test_a_prometheus_that_scrapes_us_answers_every_panel(
    settings, store, service_env, tmp_path
):
    ports = dict(zip(("genq-consumer", "genq-sink", "genq-exporter"), free_ports(3), strict=True))
    on = {job: settings.model_copy(update={"metrics_port": at}) for job, at in ports.items()}
    job = await load_job(settings, "watched", rows=40)
    await job.answer(await job.lease(20))
    async with AsyncExitStack() as stack:
        world = await stack.enter_async_context(
            world_of(on["genq-consumer"], store, service_env, tmp_path)
        )
        engine = await stack.enter_async_context(running_fake(tmp_path, api_key=""))
        await stack.enter_async_context(world.serving(url=engine.url))
        lab = await stack.enter_async_context(local_lab(settings, job))
        tools = lab.tools()
        sink = SinkService(tools, only=None, burst=False)
        lab.start(sink.serve())
        exporter = Exporter(job.redis, settings)
        looking = asyncio.create_task(exporter.keep_looking(0.5))
        stack.callback(looking.cancel)
        metrics = SinkMetrics(sink, tools)
        stack.enter_context(serve_metrics(on["genq-sink"], metrics.read))
        stack.enter_context(serve_metrics(on["genq-exporter"], exporter.read))
        query = stack.enter_context(prometheus(tmp_path, ports))

        waiting = {name: text for name, text in QUERIES.items() if not EMPTY.search(text)}

        async def all_answered():
            await asyncio.sleep(0.25)  # poll: a round of questions costs more than a look
            if await asyncio.to_thread(query, "genq_run_results_total"):
                await job.answer(await job.lease(1))  # the run goes on meanwhile
                for name, text in list(waiting.items()):
                    if await asyncio.to_thread(query, text):
                        del waiting[name]
            return not waiting

        try:
            await eventually(all_answered, 90)
        except AssertionError:
            raise AssertionError(f"no answer: {sorted(waiting)}") from None
        assert [one["metric"]["job"] for one in await asyncio.to_thread(query, "up == 0")] == []
        for text in QUERIES.values():
            await asyncio.to_thread(query, text)  # the others are sound, too


@pytest.mark.row("D4")
async def test_rq_exporter_sees_our_runs_and_changes_nothing(bench, redis_url):
    folder = BIN.parent / "rq-exporter"
    if not folder.is_dir():
        pytest.skip("rq-exporter is not here: deploy/setup.sh test")
    await bench.load(20)
    leased = await bench.lease(5)
    await bench.complete(leased[:2])
    await bench.fail(leased[2:3], final=True)
    before = snapshot(bench.sync)
    (port,) = free_ports(1)
    argv = [sys.executable, "-m", "rq_exporter", "--host", "127.0.0.1", "--port", str(port)]
    with ExitStack() as stack:
        env = {"PYTHONPATH": str(folder), "RQ_REDIS_URL": redis_url}
        process = stack.enter_context(running(argv, **env))

        async def page():
            assert process.poll() is None
            try:
                return Page((await asyncio.to_thread(fetch, port))[1])
            except OSError:
                return None

        shown = await eventually(page, 60)
        again = Page((await asyncio.to_thread(fetch, port))[1])
    counts = {"queued": 15, "started": 2, "finished": 2, "failed": 1, "scheduled": 0}
    for page_ in (shown, again):
        found = {status: page_("rq_jobs", queue=RUN, status=status) for status in counts}
        assert found == counts
    assert snapshot(bench.sync) == before


def snapshot(client):
    return {key: (client.dump(key), client.ttl(key) >= 0) for key in client.keys("*")}
