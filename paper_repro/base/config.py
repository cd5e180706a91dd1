"""From an experiment's name and overrides to a resolved config and the identity that follows from it.

Hydra composes the files (once for each choice of config groups); value overrides are then applied to that composition,
checked against the type of what they replace.  A config is a plain dict from there on.
"""

import copy
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from paper_repro.base.errors import UsageError, nearest
from paper_repro.base.targets import check_targets

CONF = Path(__file__).parents[1] / "conf"
MACHINE = "machine"
"""The one top-level key that says where and how fast, never what: it stays out of a cell's identity."""
IDENTITY_LENGTH = 16


@dataclass(frozen=True)
class Override:
    """One parsed ``key=value`` (also ``+key=value`` to add a key, and ``group=choice``)."""

    text: str
    key: str
    value: Any
    adds: bool


@functools.lru_cache(maxsize=1024)
def parse_override(text: str) -> Override:
    """Parse one override in Hydra's grammar.

    Raises:
        UsageError: it is not of the form key=value, or deletes or sweeps.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    try:
        parsed = OverridesParser.create().parse_override(text)
    except HydraException as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"override {text!r} is not of the form key=value: {reason}") from error
    if not parsed.key_or_group:
        raise UsageError(f"override {text!r} is not of the form key=value: it has no key")
    if parsed.is_delete() or parsed.is_sweep_override() or parsed.package is not None:
        raise UsageError(
            f"override {text!r}: deleting, sweeping and packages are not supported; give one value for one key"
        )
    if parsed.key_or_group == "seed":
        raise UsageError(f"override {text!r}: seeds are given apart: seeds=0,1 for an artifact, seed=0 for one run")
    try:
        canonical_json(parsed.value())
    except (ValueError, TypeError) as error:
        raise UsageError(f"override {text!r}: a value must be finite, and keys in braces all words") from error
    return Override(text, parsed.key_or_group, parsed.value(), parsed.is_add() or parsed.is_force_add())


def compose(experiment: str, overrides: Sequence[str] = (), seed: int = 0) -> dict[str, Any]:
    """The resolved config of one cell: ``compose_seeds`` for a single seed."""
    return compose_seeds(experiment, overrides, [seed])[0]


def compose_seeds(experiment: str, overrides: Sequence[str], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """The resolved configs of one experiment at several seeds.

    Args:
        experiment: a file under ``conf/experiment``, for example ``cem/gaussian_process``.
        overrides: Hydra-style; a later one wins over an earlier one.
        seeds: each goes to the top-level key ``seed``, from where the config's interpolations take it.

    Raises:
        UsageError: unknown experiment, group choice or key (with the nearest valid name), a value of another type than
            the default's, or a ``_target_`` outside paper_repro and torch.optim.
    """
    parsed = [parse_override(text) for text in overrides]
    groups = {item.key: item.value for item in parsed if _chooses(item)}
    config = copy.deepcopy(_compose_files(experiment, tuple(sorted(groups.items()))))
    for item in parsed:
        if not _chooses(item):
            _apply(config, item)
    for seed in seeds:
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            raise UsageError(f"seed {seed!r} is not a whole number of 0 or above")
    try:
        return list(_resolved(config, seeds))
    except OmegaConfBaseException as error:
        raise UsageError(f"experiment {experiment}: {str(error).splitlines()[0]}") from error


def experiments() -> list[str]:
    """The experiments that ``conf/experiment`` holds."""
    folder = CONF / "experiment"
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))


def recipe(config: Mapping[str, Any]) -> str:
    """The hash of what changes a result: everything but the machine."""
    return fingerprint({key: value for key, value in config.items() if key != MACHINE})


def fingerprint(value: Any) -> str:
    """A short SHA-256 of a JSON value; key order does not matter, 1 and 1.0 differ."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:IDENTITY_LENGTH]


def canonical_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def lookup(config: Mapping[str, Any], key: str) -> Any:
    """The value under a dotted key, for example ``optimizer.lr``.

    Raises:
        KeyError: there is none.
    """
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            raise KeyError(key)
        node = node[part]
    return node


def without(config: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """A copy of ``config`` without the given dotted keys (absent ones are ignored)."""
    result = copy.deepcopy(dict(config))
    for key in keys:
        *parents, last = key.split(".")
        node: Any = result
        for part in parents:
            node = node.get(part, {}) if isinstance(node, dict) else {}
        if isinstance(node, dict):
            node.pop(last, None)
    return result


def _chooses(override: Override) -> bool:
    """Whether this names a config of a group, as ``machine=gpu`` does, and is no value for a key."""
    return isinstance(override.value, str) and override.key != "experiment" and (CONF / override.key).is_dir()


@functools.lru_cache(maxsize=256)
def _compose_files(experiment: str, groups: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir

    if experiment not in experiments():
        raise UsageError(f"unknown experiment {experiment!r}{nearest(experiment, experiments())}")
    for group, choice in groups:
        folder = CONF / group
        choices = [path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml")]
        if choice not in choices:
            raise UsageError(f"{group}={choice}: there is no such {group} config{nearest(choice, choices)}")
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = hydra_compose(f"experiment/{experiment}", [f"{group}={choice}" for group, choice in groups])
    except HydraException as error:
        raise UsageError(f"experiment {experiment}: {error}") from error
    container = OmegaConf.to_container(config, resolve=False)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def _resolved(config: dict[str, Any], seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    tree = OmegaConf.create(config)
    for seed in seeds:
        tree.seed = seed
        container = OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
        assert isinstance(container, dict)
        check_targets(container)
        yield {str(key): value for key, value in container.items()}


def _apply(config: dict[str, Any], override: Override) -> None:
    *parents, last = override.key.split(".")
    node: Any = config
    for depth, part in enumerate(parents):
        if part not in node:
            raise _unknown_key(override, parents[:depth], node)
        node = node[part]
        if not isinstance(node, dict):
            raise UsageError(f"override {override.text!r}: {'.'.join(parents[: depth + 1])} is a value, not a section")
    if last not in node:
        if not override.adds:
            raise _unknown_key(override, parents, node)
        node[last] = override.value
        return
    node[last] = _checked(override, node[last])


def _unknown_key(override: Override, parents: Sequence[str], node: Mapping[str, Any]) -> UsageError:
    valid = [".".join([*parents, str(key)]) for key in node]
    return UsageError(f"override {override.text!r}: unknown key {override.key!r}{nearest(override.key, valid)}")


def _checked(override: Override, default: Any) -> Any:
    value = override.value
    open_default = isinstance(default, str) and (default.startswith("${") or default == MISSING)
    if default is None or value is None or open_default or (isinstance(value, str) and value.startswith("${")):
        return value
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(default):
        section = override.key.rpartition(".")[0]
        other = f"; where either is right, override the whole section {section}" if section else ""
        raise UsageError(
            f"override {override.text!r}: {override.key} takes {_kind(default)} (default {default!r}), "
            f"not {_kind(value)}{other}"
        )
    return value


def _kind(value: Any) -> str:
    kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "a word", list: "a list"}
    return kinds.get(type(value), "a section")
