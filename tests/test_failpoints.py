"""Every step at which a process may be killed has a crash test, and is really a step."""

from __future__ import annotations

import ast

import pytest

from common.failpoint import declared
from tests.support.failpoints import CRASH_TESTS, ROOT, declaring_modules


def names_given_to(function, path):
    """The texts that calls of ``function`` (plain, or of the module) get in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in (
            function,
            f"failpoint.{function}",
        ):
            for argument in node.args:
                assert isinstance(argument, ast.Constant), f"{path.name}:{node.lineno}: no literal"
                yield argument.value


def test_each_failpoint_has_a_crash_test():
    tested = {name for names in CRASH_TESTS.values() for name in names}
    assert set(declared()) == tested


@pytest.mark.parametrize("module", declaring_modules())
def test_each_failpoint_is_hit_where_it_is_declared(module):
    path = declaring_modules()[module]
    assert set(names_given_to("declare", path)) == set(names_given_to("hit", path))


def test_each_crash_test_takes_its_failpoints_from_the_list():
    taken = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name in CRASH_TESTS
            ):
                taken[node.name] = [ast.unparse(decorator) for decorator in node.decorator_list]
    for test in CRASH_TESTS:
        assert any(f"points_of('{test}')" in line for line in taken.get(test, [])), (
            f"no test {test} that is parametrised with points_of('{test}')"
        )
