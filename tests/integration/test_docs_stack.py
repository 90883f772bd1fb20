"""The output that the docs show of the local stack is what it prints."""

import pytest

from tests.support import docs

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(1800)]


def test_what_the_docs_show_of_the_stack_is_what_it_prints():
    assert not docs.stale(docs.made_on_the_stack()), "run: make docs"
