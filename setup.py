"""Maps the folders of code at the top of the repository inside the one package (see paper_repro/__init__.py)."""

from setuptools import find_namespace_packages, setup

SIBLINGS = ("datamodules", "kernels", "lightning_modules", "scripts")
inner = find_namespace_packages(include=["paper_repro", "paper_repro.*"])
siblings = [name for sibling in SIBLINGS for name in find_namespace_packages(include=[sibling, f"{sibling}.*"])]

setup(
    packages=inner + [f"paper_repro.{name}" for name in siblings],
    package_dir={f"paper_repro.{name}": name.replace(".", "/") for name in siblings},
)
