"""Every file of deploy/ agrees with the settings; YAML and shell are sound."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import partial

import pytest

from common.settings import Settings, load_settings, names_of, secret_file_variables
from tests.support.tools import DEPLOY, KNOWN_VARIABLES, ROOT, accepted, relative

PAGE = ROOT / "docs" / "deploy.md"
TEXTS = [
    path
    for path in [PAGE, *sorted(DEPLOY.rglob("*"))]
    if path.is_file() and path.suffix != ".py" and not {"secrets", "__pycache__"} & set(path.parts)
]


@pytest.mark.parametrize("path", TEXTS, ids=relative)
def test_every_variable_that_a_deploy_file_names_is_a_setting(path):
    named = set(re.findall(r"\bGENQ_[A-Z0-9_]*[A-Z0-9]\b", path.read_text(encoding="utf-8")))
    assert named <= KNOWN_VARIABLES, named - KNOWN_VARIABLES


def test_every_setting_is_in_the_example_of_the_environment():
    lines = (DEPLOY / "env.example").read_text().splitlines()
    shown = {line[1:].partition("=")[0] for line in lines if re.match(r"#[A-Z]", line)}
    ours = {names_of(field)[0] for field in Settings.model_fields}
    files = {name for name in secret_file_variables() if name.removesuffix("_FILE") in ours}
    assert shown == ours | files


def test_the_documented_values_of_the_example_can_be_set(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for line in (DEPLOY / "env.example").read_text().splitlines():
        name, _, value = line.removeprefix("#").partition("=")
        if line.startswith("#GENQ_") and value:
            monkeypatch.setenv(name, value)
    assert load_settings().sink_rows == 500


LINT = """{extends: default, rules: {
  document-start: disable, comments-indentation: disable, line-length: disable,
  comments: {min-spaces-from-content: 1}, braces: {max-spaces-inside: 0}, commas: enable,
  truthy: {check-keys: false}}}"""


def test_yaml_is_well_formed():
    files = [path for path in TEXTS if path.suffix in {".yml", ".yaml"}]
    assert len(files) > 10
    accepted("yamllint", "--strict", "-d", LINT, *files)


def test_shell_is_sound():
    scripts = [path for path in TEXTS if path.suffix == ".sh"]
    assert scripts
    accepted("shellcheck", *scripts, ROOT / ".ci" / "run")
    accepted("shellcheck", "--shell=bash", DEPLOY / "slurm" / "consumers.sbatch")


def test_the_page_on_deployment_names_files_that_exist():
    text = PAGE.read_text(encoding="utf-8")
    links = {name for name in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in name}
    assert all((PAGE.parent / name).exists() for name in links), links
    named = set(re.findall(r"\bdeploy/[\w./-]*\w", text))
    named.remove("deploy/prometheus/consumers.json")  # made by who follows the page, as these are:
    named = {name for name in named if not f"{name}/".startswith("deploy/secrets/")}
    assert all((ROOT / name).exists() for name in named), named
    commands = re.findall(r"^    (.*)$", text, flags=re.MULTILINE)
    assert len(commands) > 20


def test_the_commands_on_the_page_are_shell(tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    lines = re.findall(r"^    (.*)$", text, flags=re.MULTILINE)
    script = tmp_path / "page.sh"
    script.write_text("#!/bin/bash\n" + "\n".join(lines) + "\n")
    accepted("shellcheck", "--severity=warning", script)


def test_the_commands_on_the_page_make_no_secrets_that_git_would_take(tmp_path):
    """Follow every line that makes them or hands them on, in a copy without anything of ours."""
    text = PAGE.read_text(encoding="utf-8").replace("\\\n", " ")
    (made,) = re.findall(r"^    (deploy/make-secrets\.sh \S+ redis\.\S+)$", text, re.MULTILINE)
    copy = tmp_path / "copy"
    (copy / "deploy").mkdir(parents=True)
    for name in (".gitignore", "deploy/make-secrets.sh", "deploy/users.acl"):
        shutil.copy(ROOT / name, copy / name)
    run = partial(subprocess.run, cwd=copy, check=True, timeout=30, capture_output=True, text=True)
    run(["bash", "-euc", f"git init -q; {made}"])
    new = run(["git", "status", "--porcelain", "--untracked-files=all"]).stdout
    assert "secrets/" not in new
    for handed in re.findall(r"deploy/secrets/[\w.$-]+\w", text):
        assert (copy / handed.replace("$user", "sink")).is_file(), handed
    (slurm,) = re.findall(r"^    (install -D .* deploy/secrets/.*)$", text, re.MULTILINE)
    run(["bash", "-euc", slurm], env={**os.environ, "HOME": str(tmp_path)})
    script = (DEPLOY / "slurm" / "consumers.sbatch").read_text()
    asked = set(re.findall(r"_FILE=\$secrets/(\S+)", script))
    assert {path.name for path in (tmp_path / ".config/genq/secrets").iterdir()} == asked


def test_the_page_installs_what_the_server_s_file_names():
    installed = re.findall(
        r"^    install .* (\S+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    (users,) = re.findall(r"^aclfile (\S+)$", (DEPLOY / "redis.conf").read_text(), re.MULTILINE)
    assert users in installed
