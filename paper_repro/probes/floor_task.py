"""The base of tasks that measure a trivial baseline: they train nothing, and take data of one kind."""

from collections.abc import Mapping
from typing import Any, ClassVar

from paper_repro.base.configs import built_by
from paper_repro.base.errors import UsageError
from paper_repro.cells.tasks import Cost, Task
from paper_repro.datamodules.counter_based import CounterBasedDataModule, data_of


class FloorTask(Task):
    """A task that measures what costs nothing to reach on a cell's data; others are refused before anything runs."""

    kinds: ClassVar[tuple[type[CounterBasedDataModule], ...]]
    """The data modules that it takes."""
    takes: ClassVar[str]
    """What it does with them, for the error: "counts tokens of texts"."""

    def check(self, config: Mapping[str, Any]) -> None:
        kind = built_by(config["data"]["_target_"])
        if not issubclass(kind, self.kinds):
            raise UsageError(f"{type(self).__name__} {self.takes}, the data are {kind.__name__}")

    def cost(self, config: Mapping[str, Any]) -> Cost | None:
        self.check(config)
        return None

    def data_of(self, config: Mapping[str, Any]) -> Any:
        """Build the data of a config, which are of one of the ``kinds``.

        Raises:
            UsageError: they are not, or a value is refused.
        """
        self.check(config)
        return data_of(config)
