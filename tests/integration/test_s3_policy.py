"""deploy/s3-policy.json grants what the services ask of object storage, and nothing else."""

from __future__ import annotations

import ast
import json
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from common.ids import RunName
from common.objectstore import RunPaths
from common.s3 import open_store
from common.settings import load_settings

ROOT = Path(__file__).parents[2]
PREFIX = "team/project"


@pytest.fixture
def policy(s3_server):
    text = (ROOT / "deploy" / "s3-policy.json").read_text()
    filled = text.replace("BUCKET", s3_server.bucket).replace("PREFIX", PREFIX)
    return json.loads(filled)["Statement"]


@pytest.fixture
def asked(s3_server):
    """A store, and every (action, bucket, key or prefix) that it asks the server for."""
    store = open_store(load_settings(**s3_server.settings(prefix=PREFIX)))
    requests = []
    send = store._http.urlopen

    def record(method, url, *args, **options):
        requests.append(action_of(method, url))
        return send(method, url, *args, **options)

    store._http.urlopen = record
    return store, requests


def action_of(method, url):
    parts = urlsplit(url)
    bucket, _, key = unquote(parts.path).strip("/").partition("/")
    query = parse_qs(parts.query)
    if method == "GET" and not key and query.get("list-type") == ["2"]:
        return "s3:ListBucket", bucket, query.get("prefix", [""])[0]
    plain = {"GET": "s3:GetObject", "HEAD": "s3:GetObject", "PUT": "s3:PutObject"}
    actions = {**plain, "DELETE": "s3:DeleteObject"}
    assert key, f"{method} {url} is not about an object"
    assert not query, f"{method} {url} asks for more than an object"
    return actions[method], bucket, key


def allows(policy, action, bucket, key):
    for statement in policy:
        actions, resources = as_list(statement["Action"]), as_list(statement["Resource"])
        prefixes = statement.get("Condition", {}).get("StringLike", {}).get("s3:prefix", "*")
        name = f"arn:aws:s3:::{bucket}" + ("" if action == "s3:ListBucket" else f"/{key}")
        if (
            action in actions
            and any(fnmatchcase(name, resource) for resource in resources)
            and any(fnmatchcase(key, prefix) for prefix in as_list(prefixes))
        ):
            return True
    return False


def as_list(value):
    return value if isinstance(value, list) else [value]


def keys_of(paths):
    names = ("run_json", "failed", "manifest", "readme", "success")
    yield from (getattr(paths, name) for name in names)
    yield from (paths.prompts("f" * 64, 0), paths.part(0, "parquet"), paths.index(0))


def test_all_that_is_asked_is_granted_and_all_that_is_granted_is_asked(policy, asked):
    store, requests = asked
    paths = RunPaths(RunName("run"))
    store.probe()
    for key in keys_of(paths):
        store.put(key, b"x", metadata={"genq-writer": "w"})
        found = store.stat(key)
        assert store.get(key) == b"x"
        assert store.read_range(key, 0, 1, etag=found.etag) == b"x"
    store.create(paths.part(1, "parquet"), b"y")
    assert len(list(store.list(paths.data_prefix))) == 2
    store.delete(paths.success)
    for request in requests:
        assert allows(policy, *request), request
    granted = {action for statement in policy for action in as_list(statement["Action"])}
    assert granted == {action for action, _, _ in requests}


def test_nothing_is_granted_elsewhere_and_data_cannot_be_deleted(policy, s3_server):
    bucket = s3_server.bucket
    paths = RunPaths(RunName("run"))
    for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"):
        assert not allows(policy, action, bucket, "team/other/run.json")
        assert not allows(policy, action, "another", f"{PREFIX}/run/run.json")
    assert not allows(policy, "s3:ListBucket", bucket, "")
    for key in set(keys_of(paths)) - {paths.success}:
        assert not allows(policy, "s3:DeleteObject", bucket, f"{PREFIX}/{key}")


def test_services_delete_nothing_but_success_and_probes():
    for path in sorted([*ROOT.glob("producer/**/*.py"), *ROOT.glob("consumer/**/*.py")]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("store.delete"):
                what = ast.unparse(node.args[0])
                forwards = path.name == "single.py" and what == "key"
                assert forwards or what.endswith(("paths.success", "RunPaths(self.run).success")), (
                    f"{path}:{node.lineno}"
                )
