"""Files below conf that YAML 1.1 and YAML 1.2 read in different ways are refused."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from paper_repro.base import config as configs
from paper_repro.base import dialects, typed_yaml
from paper_repro.base.config import CONF, compose
from paper_repro.base.errors import UsageError


@pytest.mark.parametrize("path", sorted(CONF.rglob("*.yaml")), ids=lambda path: path.relative_to(CONF).as_posix())
def test_our_own_files_have_one_reading(path: Path) -> None:
    dialects.check(path)
    assert typed_yaml.read(path).plain() == OmegaConf.to_container(OmegaConf.load(path), resolve=False)


@pytest.mark.parametrize("text", ["1:30", "1_000", "yes", "No", "on", "010", "0o17", "0b11", "1:30.5", "- [off]"])
def test_what_has_two_readings_is_refused_with_file_and_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(f"a: 1\nb:\n  {text}\n")
    assert typed_yaml.read(path).plain() != OmegaConf.to_container(OmegaConf.load(path)), "they agree"
    word = text.strip("-[] ")
    with pytest.raises(
        UsageError, match=rf"two.yaml:3: {word} is read as .* by YAML 1.1 and as .* by YAML 1.2"
    ) as error:
        dialects.check(path)
    assert f'"{word}"' in str(error.value)
    path.write_text(f'a: 1\nb:\n  "{word}"\n')
    dialects.check(path)


def test_a_key_has_one_reading_too(tmp_path: Path) -> None:
    (tmp_path / "key.yaml").write_text("section:\n  on: 1\n")
    with pytest.raises(UsageError, match=r"key.yaml:2: on is read as true or false"):
        dialects.check(tmp_path / "key.yaml")


@pytest.mark.parametrize(
    "text", ["1e-3", "1.5", "-2", "true", "null", "~", ".inf", "a b", "0", "0.5", "${a.b}", "2026-01-02"]
)
def test_what_both_read_alike_is_read(text: str, tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(f"a: {text}\n")
    dialects.check(path)
    assert typed_yaml.read(path).plain() == OmegaConf.to_container(OmegaConf.load(path), resolve=False)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("width: 1_000", r"small.yaml:1: 1_000 is read as a number by YAML 1.1"),
        ("width: &a 8\nhidden: *a", r"small.yaml:1: &a: anchors and aliases are not read: .* under 'defaults'"),
    ],
)
def test_a_config_that_is_composed_of_such_a_file_is_refused(
    model: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder in ("experiment/mine", "model"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "experiment" / "mine" / "one.yaml").write_text(
        "# @package _global_\ndefaults:\n  - /model: small\n  - _self_\nseed: 0\n"
    )
    (tmp_path / "model" / "small.yaml").write_text(f"{model}\n")
    monkeypatch.setattr(configs, "CONF", tmp_path)
    configs.compose_files.cache_clear()
    with pytest.raises(UsageError, match=message):
        compose("mine/one")
    (tmp_path / "model" / "small.yaml").write_text("width: 1000\n")
    assert compose("mine/one")["model"] == {"width": 1000}
