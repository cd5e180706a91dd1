"""Files that other tools read: the lock file, the container and the workflow agree with what is here."""

import re
import tomllib

from paper_repro.base.errors import ROOT


def name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def test_constraints_are_the_versions_of_the_lock_file() -> None:
    locked = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    expected = {name(one["name"]): one["version"] for one in locked if "registry" in one["source"]}
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert {name(line.split("==")[0]): line.split("==")[1] for line in lines} == expected
    files = [file for one in locked for file in (*one.get("wheels", ()), one.get("sdist"))]
    assert all(file is None or file["hash"].startswith("sha256:") for file in files)


def test_the_lock_file_is_of_todays_requirements() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (own,) = (one for one in tomllib.loads((ROOT / "uv.lock").read_text())["package"] if one["name"] == project["name"])
    required = {name(re.split(r"[\[<>=;! ]", text)[0]) for text in project["dependencies"]}
    assert required == {name(one["name"]) for one in own["dependencies"]}
