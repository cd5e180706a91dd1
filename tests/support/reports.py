"""What stands in a test for the report of a running cell."""


class Recorder:
    """A report that asks to stop once ``stop_at`` steps are done."""

    saves = False

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at = stop_at
        self.seen: list[tuple[int, int, float]] = []

    def progress(self, step: int, steps: int, loss: float) -> None:
        self.seen.append((step, steps, loss))

    @property
    def stop_requested(self) -> bool:
        return self.stop_at is not None and self.seen[-1:] != [] and self.seen[-1][0] >= self.stop_at
