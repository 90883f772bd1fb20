"""The Grafana dashboards in deploy/grafana, made from short tables.

``python -m tests.support.dashboards`` writes them; a test compares, and checks every query.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.dashboard_panels import DASHBOARDS

if TYPE_CHECKING:
    from tests.support.dashboard_panels import Dashboard, Panel

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "dashboards"
SOURCE = {"type": "prometheus", "uid": "${source}"}
WIDE = 24
HEIGHT = {"stat": 4, "table": 9, "timeseries": 8, "heatmap": 8}


def page(dashboard: Dashboard) -> str:
    """Return a dashboard's file."""
    body = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.about,
        "tags": ["genq"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [_source(), *(_variable(*pair) for pair in dashboard.variables.items())]
        },
        "links": [{"type": "dashboards", "title": "genq", "tags": ["genq"], "asDropdown": False}],
        "panels": list(_placed(dashboard.panels)),
    }
    return json.dumps(body, indent=1, ensure_ascii=False) + "\n"


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _placed(panels: tuple[Panel, ...]) -> Any:
    """Put panels in rows from left to right."""
    x = y = row = 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > WIDE:
            x, y, row = 0, y + row, 0
        height = HEIGHT[panel.kind]
        yield _panel(number, panel, {"x": x, "y": y, "w": panel.width, "h": height})
        x, row = x + panel.width, max(row, height)


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.red_above is not None:
        steps.append({"color": "red", "value": panel.red_above})
    custom = {"stacking": {"mode": "normal"}, "fillOpacity": 40} if panel.stacked else {}
    options: dict[str, Any] = {"legend": {"showLegend": True}, "tooltip": {"mode": "multi"}}
    if panel.kind == "stat":
        options = {"textMode": "auto", "reduceOptions": {"calcs": ["lastNotNull"]}}
        if "== 1" in next(iter(panel.queries)):
            options["textMode"] = "name"  # the label says it, not the 1
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "custom": custom,
                "thresholds": {"mode": "absolute", "steps": steps},
            },
            "overrides": [],
        },
        "options": options,
        "targets": [
            {"refId": chr(ord("A") + n), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
            for n, (expr, legend) in enumerate(panel.queries.items())
        ],
    }


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, dashboard in DASHBOARDS.items():
        (FOLDER / f"{name}.json").write_text(page(dashboard), encoding="utf-8")
