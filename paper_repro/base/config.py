"""From an experiment's name and overrides to a resolved config.

Hydra composes the files, once for each choice of config groups; value overrides are then applied to that composition
(``overrides.apply``), and references such as ``${data.window}`` are replaced by values.  A config is a plain dict.

Hydra and OmegaConf are imported where they compose, because their import takes a third of a second.
"""

import contextlib
import copy
import functools
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paper_repro.base.errors import UsageError, nearest
from paper_repro.base.overrides import MISSING, Override, apply, parse
from paper_repro.base.packages import own_packages
from paper_repro.base.seeds import LARGEST
from paper_repro.base.targets import check_targets

CONF = Path(__file__).parents[1] / "conf"
MOST_VALUES = 20_000
_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\}")


def compose(experiment: str, overrides: Sequence[str | Override] = (), seed: int = 0) -> dict[str, Any]:
    """Return the resolved config of one cell: ``compose_seeds`` for a single seed."""
    return compose_seeds(experiment, overrides, [seed])[0]


def compose_seeds(experiment: str, overrides: Sequence[str | Override], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return the resolved configs of one experiment at several seeds.

    Args:
        experiment: a file under ``conf/experiment``, for example ``cem/gaussian_process``.
        overrides: the words of a command or parsed ones; a later one wins over an earlier one.
        seeds: each goes to the top-level key ``seed``, from where the config's references take it.

    Raises:
        UsageError: unknown experiment, group choice or key (with the nearest valid name), a value of another type than
            the default's, a reference that leads nowhere, or a ``_target_`` outside paper_repro and torch.optim.
    """
    config = unresolved(experiment, parse_all(overrides))
    found = []
    for seed in seeds:
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= LARGEST:
            raise UsageError(f"seed {seed!r} is not a whole number of 0 or above, up to {LARGEST}")
        try:
            found.append(resolve({**config, "seed": seed}))
        except UsageError as error:
            raise UsageError(f"experiment {experiment}: {error}") from error
        check_targets(found[-1])
    return found


def resolve(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a config in which each reference to a key, such as ``${seed}``, is that key's value.

    OmegaConf would take a hundred times as long, and would resolve what a config must not hold: ``${oc.env:HOME}``.

    Raises:
        UsageError: a reference to an unknown key, to itself or of another form; a value that is missing (``???``); or
            more than ``MOST_VALUES``, because some references double the values of others.
    """
    count = 0

    def value(node: Any, place: str, within: tuple[str, ...]) -> Any:
        nonlocal count
        count += 1
        if count > MOST_VALUES:
            raise UsageError(f"references lead to more than {MOST_VALUES:,} values: write each value once")
        if isinstance(node, Mapping):
            return {
                str(key): value(child, f"{place}.{key}" if place else str(key), within) for key, child in node.items()
            }
        if isinstance(node, list):
            return [value(child, f"{place}[{index}]", within) for index, child in enumerate(node)]
        if not isinstance(node, str) or ("$" not in node and node != MISSING):
            return node
        if node == MISSING:
            raise UsageError(f"{place} has no value: give {place}=...")
        if "${" in _REFERENCE.sub("", node):
            raise UsageError(
                f"{place}: {node!r} is refused: only plain references such as ${{data.window}} are accepted"
            )
        if found := _REFERENCE.fullmatch(node):
            return behind(found[1], place, within)
        return _REFERENCE.sub(lambda found: str(behind(found[1], place, within)), node)

    def behind(key: str, place: str, within: tuple[str, ...]) -> Any:
        if key in within:
            raise UsageError(f"{place}: ${{{key}}} leads back to itself")
        try:
            return value(lookup(config, key), key, (*within, key))
        except KeyError:
            raise UsageError(f"{place}: ${{{key}}}: there is no key {key!r}") from None

    try:
        return {key: value(node, key, ()) for key, node in config.items()}
    except RecursionError:
        raise UsageError("references lead from one to the next too often") from None


def parse_all(overrides: Sequence[str | Override]) -> list[Override]:
    """Return the same overrides, all parsed."""
    return [parse(item) if isinstance(item, str) else item for item in overrides]


def unresolved(experiment: str, overrides: Sequence[Override]) -> dict[str, Any]:
    """Return the config with its interpolations as written: group files, then the values, a later one over an earlier
    one.
    """
    config = dict(compose_files(experiment, chosen_groups(overrides)))
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
            loader.repository.load_config = functools.partial(_loaded, loader.repository.load_config)
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

    with_own_folders()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


@functools.cache
def with_own_folders() -> None:
    """Let Hydra look for configs in the user's packages, too."""
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    class Folders(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            for folder in folders()[1:]:
                search_path.append("paper_repro", f"file://{folder}")

    Plugins.instance().register(Folders)


def _loaded(load: Callable[[str], Any], config_path: str) -> Any:
    """Return Hydra's reading of a file, which it would otherwise repeat for each composition."""
    path = file_of(config_path.removesuffix(".yaml"))
    key = (config_path, path, path and path.stat().st_mtime_ns)
    if key not in _READ:
        _READ[key] = load(config_path)
    return copy.deepcopy(_READ[key])


_READ: dict[Hashable, Any] = {}
