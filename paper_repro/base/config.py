"""From an experiment's name and overrides to a resolved config.

Hydra composes the files (once for each choice of config groups); value overrides are then applied to that composition,
see ``overrides.apply``.  A config is a plain dict from there on.

Hydra and OmegaConf are imported where they compose, for their import takes a third of a second.
"""

import contextlib
import copy
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paper_repro.base import dialects
from paper_repro.base.errors import UsageError, nearest
from paper_repro.base.overrides import Override, apply, parse
from paper_repro.base.packages import own_packages
from paper_repro.base.seeds import LARGEST
from paper_repro.base.targets import check_targets

CONF = Path(__file__).parents[1] / "conf"
_REFERENCE = re.compile(r"\$\{\.*[A-Za-z_][\w.\[\]-]*\}")
"""A plain reference to another key, ``${seed}``; a resolver, ``${oc.env:HOME}``, has a colon."""
_WHOLE_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\}")
"""A text that is one reference from the root, and nothing else."""
MOST_VALUES = 20_000
_PLAIN = (int, float, bool, type(None))
_ANY_SEED = 7_305_918_264_530_127_689
"""A seed to resolve a config with, in whose place each seed of a sweep comes; no config holds this number."""


def compose(experiment: str, overrides: Sequence[str | Override] = (), seed: int = 0) -> dict[str, Any]:
    """Return the resolved config of one cell: ``compose_seeds`` for a single seed."""
    return compose_seeds(experiment, overrides, [seed])[0]


def compose_seeds(experiment: str, overrides: Sequence[str | Override], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return the resolved configs of one experiment at several seeds.

    Args:
        experiment: a file under ``conf/experiment``, for example ``cem/gaussian_process``.
        overrides: the words of a command or parsed ones; a later one wins over an earlier one.
        seeds: each goes to the top-level key ``seed``, from where the config's interpolations take it.

    Raises:
        UsageError: unknown experiment, group choice or key (with the nearest valid name), a value of another type than
            the default's, or a ``_target_`` outside paper_repro and torch.optim.
    """
    from omegaconf.errors import OmegaConfBaseException

    config = unresolved(experiment, parse_all(overrides))
    for seed in seeds:
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            raise UsageError(f"seed {seed!r} is not a whole number of 0 or above")
        if seed > LARGEST:
            raise UsageError(f"seed {seed} is above {LARGEST}, the largest that a record can hold: give a smaller one")
    for key, text in _texts(config, ""):
        if "${" in _REFERENCE.sub("", text):
            raise UsageError(
                f"experiment {experiment}: {key}: {text!r} is refused: only plain references to other keys, such as "
                "${seed}, are accepted; what stands in a config is published with its results"
            )
    _check_size(config, experiment)
    try:
        return list(_resolved(config, seeds))
    except OmegaConfBaseException as error:
        raise UsageError(f"experiment {experiment}: {str(error).splitlines()[0]}") from error


def _check_size(config: Mapping[str, Any], experiment: str) -> None:
    """Count the values that a config has once its references are resolved, each of which may lead to a section.

    Raises:
        UsageError: more than ``MOST_VALUES``: some references double what others lead to.
    """
    known: dict[tuple[str, ...], int] = {}

    def count(node: Any, place: tuple[str, ...]) -> int:
        if isinstance(node, Mapping | list):
            items = node.items() if isinstance(node, Mapping) else enumerate(node)
            return 1 + sum(count(value, (*place, str(key))) for key, value in items)
        return 1 + sum(behind(text, place) for text in _REFERENCE.findall(node)) if isinstance(node, str) else 1

    def behind(text: str, place: tuple[str, ...]) -> int:
        key = text.strip("${}")
        up = len(key) - len(key.lstrip("."))
        target = (*place[: len(place) - up if up else 0], *re.findall(r"[\w-]+", key))
        if target not in known:
            known[target] = 0  # a circle is OmegaConf's to refuse
            node: Any = config
            with contextlib.suppress(KeyError, IndexError, TypeError, ValueError):  # and what leads nowhere
                for part in target:
                    node = node[int(part) if isinstance(node, list) else part]
                known[target] = count(node, target)
        return known[target]

    try:
        found = count(config, ())
    except RecursionError:
        found = MOST_VALUES + 1
    if found > MOST_VALUES:
        raise UsageError(
            f"experiment {experiment}: its references lead to more than {MOST_VALUES:,} values: write what is needed "
            "once, without references to sections that hold references to sections"
        )


def parse_all(overrides: Sequence[str | Override]) -> list[Override]:
    """Return the same overrides, all parsed."""
    return [parse(item) if isinstance(item, str) else item for item in overrides]


def unresolved(experiment: str, overrides: Sequence[Override]) -> dict[str, Any]:
    """Return the config with its interpolations as written: group files, then the values, a later one over an earlier
    one.
    """
    config = copy.deepcopy(compose_files(experiment, chosen_groups(overrides)))
    for item in overrides:
        if not chooses(item):
            apply(config, item)
    return config


def chosen_groups(overrides: Sequence[Override]) -> tuple[tuple[str, str], ...]:
    """Return the choice for each config group that the overrides name, sorted."""
    return tuple(sorted({item.key: item.value for item in overrides if chooses(item)}.items()))


def folders() -> list[Path]:
    """Return the folders of configs: ours, and ``conf`` of each package of the user."""
    own = (folder / "conf" for folder in own_packages().values())
    return [CONF, *(folder for folder in own if folder.is_dir())]


def files_of(group: str) -> dict[str, Path]:
    """Return the files of a group of configs by what chooses them.

    Raises:
        UsageError: two files have one name.
    """
    found: dict[str, Path] = {}
    for root in folders():
        folder = root / group
        for path in sorted(folder.rglob("*.yaml")):
            name = path.relative_to(folder).with_suffix("").as_posix()
            if name in found:
                raise UsageError(f"{path}: {found[name]} has that name already; give it another")
            found[name] = path
    return found


def file_of(name: str) -> Path | None:
    """Return the file of a config, named as in ``experiment/cem/slimpajama``; None where there is none."""
    return next((path for root in folders() if (path := root / f"{name}.yaml").is_file()), None)


def experiments() -> list[str]:
    """Return the experiments that ``conf/experiment`` holds, ours and those of the user's packages."""
    return sorted(files_of("experiment"))


def experiment_titles() -> dict[str, str]:
    """Return each experiment's first line of comment, which says what it is."""
    titles = {}
    for name, path in sorted(files_of("experiment").items()):
        lines = path.read_text(encoding="utf-8").splitlines()
        comments = (line[1:].strip() for line in lines if line.startswith("#") and not line.startswith("# @package"))
        titles[name] = next(comments, "")
    return titles


def is_experiment(name: str) -> bool:
    """Return whether there is an experiment of that name; cheaper than to list them all."""
    return file_of(f"experiment/{name}") is not None


def experiment_named(words: Sequence[str]) -> str:
    """Return the experiment that words of a command name: ``cem/slimpajama``, ``CEM Slimpajama`` or its file.

    Raises:
        UsageError: none, or several.
    """
    place = "/".join(words).rpartition("conf/experiment/")[2].removesuffix(".yaml").strip("/")
    name = {name.casefold(): name for name in experiments()}.get(place.casefold())
    if name is None and len(words) != 1:
        raise UsageError("give one experiment, for example cem/gaussian_process; --list shows them all")
    return name or place


def lookup(config: Mapping[str, Any], key: str) -> Any:
    """Return the value under a dotted key, for example ``optimizer.lr``.

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
    """Return a copy of ``config`` without the given dotted keys (absent ones are ignored)."""
    result = copy.deepcopy(dict(config))
    for key in keys:
        *parents, last = key.split(".")
        node: Any = result
        for part in parents:
            node = node.get(part, {}) if isinstance(node, dict) else {}
        if isinstance(node, dict):
            node.pop(last, None)
    return result


def chooses(override: Override) -> bool:
    """Return whether this names a config of a group, as ``machine=gpu`` does, and is no value for a key."""
    return (
        isinstance(override.value, str)
        and override.key != "experiment"
        and any((folder / override.key).is_dir() for folder in folders())
    )


@functools.lru_cache(maxsize=256)
def compose_files(experiment: str, groups: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Return what Hydra composes of an experiment's file and the files of its groups; callers copy before they change
    it.
    """
    from hydra import compose as hydra_compose
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    if experiment not in experiments():
        own = [name for name in experiments() if name.startswith(f"{experiment.partition('/')[0].casefold()}/")]
        raise UsageError(f"unknown experiment {experiment!r}{nearest(experiment, own or experiments())}")
    for group, choice in groups:
        choices = files_of(group)
        if choice not in choices:
            own = [name for name in choices if name.startswith(f"{experiment.partition('/')[0]}/")]
            raise UsageError(f"{group}={choice}: there is no such {group} config{nearest(choice, own or choices)}")
    try:
        with searched():
            loader: Any = GlobalHydra.instance().config_loader()
            _check_what_is_read(loader.repository)
            config = hydra_compose(f"experiment/{experiment}", [f"{group}={choice}" for group, choice in groups])
    except HydraException as error:
        raise UsageError(f"experiment {experiment}: {error}") from error
    container = OmegaConf.to_container(config, resolve=False)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


@contextlib.contextmanager
def searched() -> Iterator[None]:
    """Let Hydra compose from all ``folders``."""
    from hydra import initialize_config_dir

    _tell_hydra_of_folders()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


@functools.cache
def _tell_hydra_of_folders() -> None:
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    class Folders(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            for folder in folders()[1:]:
                search_path.append("paper_repro", f"file://{folder}")

    Plugins.instance().register(Folders)


def _check_what_is_read(repository: Any) -> None:
    """Have each file below ``folders`` checked by ``dialects`` when Hydra's repository loads it."""
    load = repository.load_config

    def checked(config_path: str) -> Any:
        if (path := file_of(config_path.removesuffix(".yaml"))) is not None:
            dialects.check(path)
        return load(config_path)

    repository.load_config = checked


def _resolved(config: dict[str, Any], seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the config of each seed.

    References are resolved once, with a seed that is not used anywhere, for a sweep has many seeds of each setting.
    """
    config = {**config, "seed": _ANY_SEED}
    try:
        container = _plainly(config, config)
    except _NotPlainError:
        from omegaconf import OmegaConf

        container = OmegaConf.to_container(OmegaConf.create(config), resolve=True, throw_on_missing=True)
    assert isinstance(container, dict)
    check_targets(container)
    for seed in seeds:
        yield {str(key): _with_seed(value, seed) for key, value in container.items()}


class _NotPlainError(Exception):
    """A config has more than plain values and references to them: OmegaConf has to resolve it."""


def _plainly(node: Any, config: Mapping[str, Any]) -> Any:
    """Return what OmegaConf makes of a node, in a tenth of its time.

    Raises:
        _NotPlainError: a reference that is only a part of a text, is relative, or leads to a section, another reference
            or nothing; a value that is missing (``???``) or has a backslash; or a type that YAML does not have.
    """
    if type(node) is dict:
        if not all(type(key) is str for key in node):
            raise _NotPlainError
        return {key: _plainly(value, config) for key, value in node.items()}
    if type(node) is list:
        return [_plainly(value, config) for value in node]
    if type(node) is str and (found := _WHOLE_REFERENCE.fullmatch(node)):
        try:
            node = lookup(config, found[1])
        except KeyError:
            raise _NotPlainError from None
    if type(node) in _PLAIN or (type(node) is str and not ("${" in node or "\\" in node or node == "???")):
        return node
    raise _NotPlainError


def _with_seed(node: Any, seed: int) -> Any:
    """Return a copy of a node in which ``seed`` stands for the seed that it was resolved with."""
    if isinstance(node, dict):
        return {key: _with_seed(value, seed) for key, value in node.items()}
    if isinstance(node, list):
        return [_with_seed(value, seed) for value in node]
    if isinstance(node, str):
        return node.replace(str(_ANY_SEED), str(seed))
    return seed if node == _ANY_SEED and isinstance(node, int) else node


def _texts(node: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield every word in a config, keys too, and where it stands."""
    if isinstance(node, str):
        yield path, node
    elif isinstance(node, Mapping):
        for key, value in node.items():
            place = f"{path}.{key}" if path else str(key)
            yield place, str(key)
            yield from _texts(value, place)
    elif isinstance(node, Sequence):
        for index, value in enumerate(node):
            yield from _texts(value, f"{path}[{index}]")
