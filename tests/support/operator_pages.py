"""docs/metrics.md and deploy/env.example, made from the catalogue of metrics and the settings.

``python -m tests.support.operator_pages`` writes them; a test compares.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from common.secret_files import SUFFIX
from common.settings import Settings, is_secret, kind_of, names_of
from common.telemetry.catalogue import SERVICES

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

ROOT = Path(__file__).resolve().parents[2]
METRICS = ROOT / "docs" / "metrics.md"
ENV = ROOT / "deploy" / "env.example"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
METRICS_HEAD = """\
# Metrics

What consumer, sink and exporter show to Prometheus; consumer and sink only with `--metrics-port`
(or `GENQ_METRICS_PORT`). Each endpoint listens on loopback; set `GENQ_METRICS_HOST` to open it to
others (there is no login). No prompt, no completion and no id is
in a metric; labels have few values. The same list as data: `gen-producer exporter --list --json`.

Written by `make docs` from `common/telemetry/catalogue.py`; a test compares.
"""
START = {
    "gen-consumer": "`gen-consumer --gpu N --metrics-port PORT`, one a GPU (9820 + N; 9819 in a"
    " container)",
    "gen-sink": "`gen-sink --metrics-port 9818`",
    "gen-producer exporter": "`gen-producer exporter --port 9817`, one for a Redis",
}
ENV_HEAD = """\
# Every setting as an environment variable: for compose's `env_file`, systemd's `EnvironmentFile`.
# Copy it, and take the # from what you change. Names that people have (REDIS_URL, AWS_...) do too.
# A secret may stand in a file instead: NAME_FILE=/run/secrets/name.
# Written by `make docs` from common/settings.py; a test compares.
"""


def metrics_page() -> str:
    """Return docs/metrics.md."""
    lines = [METRICS_HEAD]
    for service, metrics in SERVICES.items():
        lines += [f"## {service}", "", START[service], ""]
        lines += ["| metric | kind | labels | what it says |", "| --- | --- | --- | --- |"]
        for metric in metrics:
            labels = ", ".join(metric.labels)
            lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
        lines.append("")
    lines += ["## Alerts", "", "In `deploy/prometheus/alerts.yml`, each with a test.", ""]
    lines += ["| alert | what it says |", "| --- | --- |", *_alerts()]
    return "\n".join(lines) + "\n"


def _alerts() -> list[str]:
    text = ALERTS.read_text(encoding="utf-8")
    found = re.findall(r'alert: (\w+).*?summary: "(.*?)"', text, flags=re.DOTALL)
    return [
        f"| {name} | {re.sub(r'{{.*?}}', _placeholder, _plain(what))} |" for name, what in found
    ]


def _plain(what: str) -> str:
    """Leave the last branch of a template's choice."""
    return re.sub(r"{{ with .*?{{ else }}(.*?){{ end }}", r"\1", what)


def _placeholder(match: re.Match[str]) -> str:
    label = re.search(r"labels\.(\w+)", match.group())
    return label.group(1).upper() if label else "N"


def env_page() -> str:
    """Return deploy/env.example."""
    return ENV_HEAD + "".join(_entry(name, field) for name, field in Settings.model_fields.items())


def _entry(name: str, field: FieldInfo) -> str:
    about = f"# {field.description}\n" if field.description else ""
    variable = names_of(name)[0]
    secret = f"#{variable}{SUFFIX}=\n" if is_secret(name) else ""
    return f"\n{about}# ({kind_of(name)})\n#{variable}={_value(field)}\n{secret}"


def _value(field: FieldInfo) -> str:
    default: Any = field.default
    if field.default_factory is not None or default is None:
        return ""
    if isinstance(default, SecretStr):  # the built-in one is no secret
        return default.get_secret_value()
    return default if isinstance(default, str) else json.dumps(default)


if __name__ == "__main__":
    METRICS.write_text(metrics_page(), encoding="utf-8")
    ENV.write_text(env_page(), encoding="utf-8")
