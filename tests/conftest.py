import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is first imported, which torch may do at any time

import pytest

from paper_repro.tests.support import golden


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "golden(paper, pattern): run for every case of every golden record that matches")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("golden")
    if marker is not None:
        metafunc.parametrize("golden", list(golden.cases(*marker.args)))
