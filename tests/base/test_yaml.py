from dataclasses import dataclass, field
from pathlib import Path

import pytest

from paper_repro.base import configs
from paper_repro.base.errors import UsageError


@dataclass(frozen=True)
class Inner:
    name: str
    size: float = 1.0


@dataclass(frozen=True)
class Outer:
    title: str
    count: int
    inner: Inner
    flag: bool = False
    limit: float | None = None
    tags: list[str] = field(default_factory=list)
    parts: dict[str, Inner] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("count is not negative")


GOOD = """\
# a comment
title: T
count: 3
inner:
  name: first
flag: true
limit: 2
tags: [a, b]
parts:
  one: {name: x, size: 2}
"""


def build(folder: Path, text: str | bytes) -> Outer:
    path = folder / "file.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return configs.convert(Outer, configs.read(path))


def test_every_type_is_built(tmp_path: Path) -> None:
    found = build(tmp_path, GOOD)
    assert found == Outer("T", 3, Inner("first"), True, 2.0, ["a", "b"], {"one": Inner("x", 2.0)})
    assert isinstance(found.limit, float) and isinstance(found.parts["one"].size, float)
    assert build(tmp_path, GOOD.replace("limit: 2", "limit: null")).limit is None


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("flag: true", "flga: true", 6, "unknown key 'flga' (did you mean 'flag'?)"),
        ("{name: x, size: 2}", "{size: 2}", 10, "missing 'name' in 'one'"),
        ("count: 3\n", "", 2, "missing 'count'"),
        ("count: 3", "count:", 3, "'count' must not be empty"),
        ("count: 3", "count: three", 3, "'count' must be a whole number, not 'three'"),
        ("count: 3", "count: -3", 2, "count is not negative"),
        ("flag: true", "flag: yes", 6, "'flag' must be true or false, not 'yes'"),
        ("count: 3", "count: !!int 1:30", 3, "not understood: '1:30'"),
        ("parts:", "[a, b]:", 9, "a key is one word"),
        ("title: T", "title: !!python/name:os.system", 2, "not understood"),
        ("limit: 2", "limit: .nan", 7, "'limit' must be finite, not nan"),
        ("tags: [a, b]", "tags: a", 8, "tags must be a list"),
        ("inner:\n  name: first", "inner: first", 4, "inner must be a mapping"),
        ("flag: true", "flag: true\nflag: false", 7, "duplicate key 'flag' (first at line 6)"),
        ("  name: first", "  <<: {name: first}", 5, "merge keys (<<) are not read"),
        ("flag: true", "flag: ]", 6, "not YAML"),
        ("tags: [a, b]", "tags: &tags [a, *tags]", 8, "anchors and aliases are not read"),
    ],
)
def test_a_mistake_is_named_with_file_and_line(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(UsageError) as caught:
        build(tmp_path, GOOD.replace(old, new))
    assert str(caught.value).startswith(f"{tmp_path / 'file.yaml'}:{line}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# only a comment\n", r"file\.yaml: the file is empty"),
        ("- a\n- b\n", r"file\.yaml:1: this must be a mapping"),
        (f"{GOOD}---\n{GOOD}", r"file\.yaml:11: not YAML"),
        (b"title: \xff\xfe", r"file\.yaml: .*can't decode"),
    ],
)
def test_a_file_that_is_no_mapping_is_named(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1e-3", 0.001), ("5E+3", 5000.0), (".5", 0.5), ("-.inf", -float("inf")), ("0x1F", 31), ("0o17", 15)),
        *(("010", 10), ("~", None), ("", None), ("null", None), ("True", True), ("no", "no"), ("1:30", "1:30")),
        *(("2024-01-01", "2024-01-01"), ("1_000", "1_000"), ("'1'", "1"), ("!!str 1", "1")),
    ],
)
def test_scalars_follow_the_core_schema_of_yaml_1_2(tmp_path: Path, text: str, value: object) -> None:
    (tmp_path / "file.yaml").write_text(f"key: {text}\n")
    found = configs.read(tmp_path / "file.yaml").plain()["key"]
    assert found == value and type(found) is type(value)


def over(folder: Path, text: str) -> configs.Node:
    (folder / "base.yaml").write_text(GOOD)
    (folder / "own.yaml").write_text(text)
    return configs.over(configs.read(folder / "base.yaml"), configs.read(folder / "own.yaml"))


def test_a_file_over_another_says_only_what_differs(tmp_path: Path) -> None:
    text = "count: 5\ninner: {size: 3}\ntags: !more [c]\nparts: {one: {name: y}, two: {name: z}}\n"
    found = configs.convert(Outer, over(tmp_path, text))
    parts = {"one": Inner("y", 2.0), "two": Inner("z")}
    assert found == Outer("T", 5, Inner("first", 3.0), True, 2.0, ["a", "b", "c"], parts)
    assert list(found.parts) == ["one", "two"]
    assert configs.convert(Outer, over(tmp_path, "tags: [c]\n")).tags == ["c"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\ncount: x\n", "own.yaml:2: 'count' must be a whole number, not 'x'"),
        ("inner: {nmae: x}\n", "own.yaml:1: unknown key 'nmae' (did you mean 'name'?)"),
        ("more: !more [c]\n", "own.yaml:1: 'more' is !more of a list, and there is none before it"),
        ("count: !more [c]\n", "own.yaml:1: 'count' is !more of a list, and there is none before it"),
    ],
)
def test_a_complaint_about_one_of_two_files_names_the_right_one(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        configs.convert(Outer, over(tmp_path, text).plain() and over(tmp_path, text))
    assert str(caught.value) == f"{tmp_path}/{message}"
