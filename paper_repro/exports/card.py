"""The card of a model, README.md beside its weights; its numbers are those of config.json, taken from the record."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from paper_repro.base.configs import TARGET

LIST = Path(__file__).parents[1] / "weights" / "weights.yaml"
CARD = Path(__file__).parents[1] / "site" / "templates" / "card.md"


def listed() -> dict[str, dict[str, Any]]:
    """Return the models that come with the package, and what is known of data, each by name."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(LIST.read_text(encoding="utf-8"))
    return found


def facts(name: str, config: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return what a card says of a model; the arguments are those of ``written``."""
    lists, target = listed(), str(config["model"][TARGET])
    own, data = lists["models"].get(str(config.get("name")), {}), _data(config, lists["data"])
    commands = [f"python scripts/{own['try']}"] if "try" in own else []
    commands += [f"python scripts/export.py --make {name}    # trains it again"] if own else []
    return {
        "name": name,
        "title": own.get("title") or target.rpartition(".")[2],
        "model": target,
        "parameters": config["parameters"] or 0,
        "kilobytes": round(size / 1000),
        "data": data["title"],
        "licence": data.get("licence", "not known here"),
        "steps": config["training"]["training"]["steps"],
        "device": config["device"] or "a device that the record does not name",
        "published": own.get("cell", config["cell"]),
        "metrics": dict(sorted(config["metrics"].items())),
        "commands": commands,
        "limits": data.get("limits", ""),
        "changes": ", ".join(f"{key}={value}" for key, value in own.get("set", {}).items()),
        **{key: config[key] for key in ("dtype", "seed", "seconds", "cell", "commit")},
    }


def written(name: str, config: Mapping[str, Any], size: int) -> str:
    """Return the card of a model from the content of config.json and the bytes of its weights, for the hub."""
    found = facts(name, config, size)
    others = f"; the config of the published cell `{found['published']}` with {found['changes']}"
    found["origin"] = others if found["published"] != found["cell"] else ""
    found["metrics"] = "\n".join(f"| {metric} | {value:.6g} |" for metric, value in found["metrics"].items())
    found["use"] = "\n" + "".join(f"    {one}\n" for one in found["commands"]) if found["commands"] else ""
    return CARD.read_text(encoding="utf-8").format(**found)


def _data(config: Mapping[str, Any], known: Mapping[str, dict[str, str]]) -> Mapping[str, str]:
    """Return what is known of the data of a config: by one of its files, or by the class of its source or its own."""
    data = config["training"].get("data") or {}
    classes = [str(one.get(TARGET, "not known here")) for one in (data.get("source"), data) if one]
    found = [*(data.get("files") or {}).values(), *(name.rpartition(".")[2] for name in classes)]
    return next((known[one] for one in found if one in known), {"title": f"`{classes[0]}`" if classes else "none"})
