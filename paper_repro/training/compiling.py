"""Decides whether a cell's training loss is compiled, and keeps to it for as long as the cell is trained.

With ``machine.compile=auto`` a cell is compiled if a trial of its kind (``compile_trial``) says that the steps it has
left gain more than the start costs.  The trial itself must be worth its price: it may cost a tenth of the time that all
cells of the kind take that the same command runs.  Most cells of a few hundred short steps are therefore never tried.
"""

import contextlib
import json
import logging
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paper_repro.base.files import CorruptFileError, locked_unless, read_regular, write_atomically
from paper_repro.base.identity import AUTO, canonical_json
from paper_repro.cells.tasks import Report
from paper_repro.training import compile_trial
from paper_repro.training.build import BuiltCell
from paper_repro.training.compile_trial import Verdict
from paper_repro.training.compiled_code import first_line, kept_code, missing_compiler, of_compiler
from paper_repro.training.passes import Passes, UntriableError
from paper_repro.training.ranks import Rank

FILE = "compile.json"
"""In the folder of a cell's checkpoints: what was chosen when it began."""
FEWEST_STEPS = 100
"""A shorter run is not worth the four passes that say how long a step takes."""
TRIAL_SECONDS = 60.0
"""A trial is expected to cost this: it took 25 to 130 s, of which 15 are paid once on a machine."""
TRIAL_SHARE = 0.1
"""The largest part of the time of all cells of a kind that their trial is expected to cost."""
ENDING_SHARE = 0.3
"""The part of that time after which a trial is ended."""
LEAST_LIMIT_SECONDS = 120.0
LEAST_GAIN = 0.03
"""The least part of an uncompiled pass that counts as a gain; what is less may be noise."""
MARGIN = 1.5
"""How many times the costs of the start the gain must be."""
COLD_TO_WARM = 8
"""How many times longer a first compilation takes than a later one, where none was measured: it was 6 to 20 times."""
_MEASURED = 3
_log = logging.getLogger(__name__)
Context = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Choice:
    """Whether a cell's loss is compiled, and why."""

    compiled: bool
    why: str

    @property
    def text(self) -> str:
        """What the cell's record says."""
        return f"{'yes' if self.compiled else 'no'}: {self.why}"


def worth_a_trial(seconds: float, passes: int) -> bool:
    """Return whether a trial is worth its price for cells that have so many passes of so many seconds in all."""
    return TRIAL_SHARE * seconds * passes >= TRIAL_SECONDS


def by_verdict(verdict: Verdict, passes: int) -> Choice:
    """Return the choice of a cell with so many passes left, of whose kind the verdict is."""
    if verdict.refused:
        return Choice(False, verdict.refused)
    times = f"{verdict.compiled * 1e3:.1f} ms a pass compiled, {verdict.uncompiled * 1e3:.1f} ms uncompiled"
    warm = verdict.cold / COLD_TO_WARM if verdict.warm is None else verdict.warm
    costs = f"{times}, {warm:.1f} s to start, {passes} passes left"
    if verdict.gain < LEAST_GAIN * verdict.uncompiled:
        return Choice(False, times)
    gains = verdict.gain * passes > MARGIN * warm
    return Choice(gains, costs if gains else f"too short: {costs}")


class Compiling:
    """One cell's choice, as one of its ranks sees it.

    Args:
        folder: of the cell's checkpoints.
        context: what a forward pass is computed under (autocast).
    """

    def __init__(self, built: BuiltCell, folder: Path, report: Report, rank: Rank, context: Context) -> None:
        self.built, self.report, self.rank, self.context = built, report, rank, context
        self.file = folder / FILE
        self.choice = Choice(built.machine.compile is True, f"machine.compile={built.machine.compile}".lower())
        self._earlier = self._read() if self.automatic and rank.index == 0 else None
        self.choice = self._earlier or self.choice
        self._folder, self._lasting = Path(), False

    @property
    def automatic(self) -> bool:
        return self.built.machine.compile == AUTO

    @property
    def text(self) -> str:
        """What the record says of it; nothing where nothing was to be compiled."""
        return self.choice.text if self.built.machine.compile else ""

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Keep compiled code where all workers and runs find it; ``begin`` must be called within."""
        with kept_code(bool(self.built.machine.compile)) as (self._folder, self._lasting):
            yield

    def begin(self, step: int) -> None:
        """Choose, before the step of that number, and compile; every rank calls this.

        The module is on its device and the data are set up.  Nothing of either is changed.
        """
        if not self.automatic:
            return
        if self.rank.index == 0:
            saves, self.report.saves = self.report.saves, True  # a trial that the user stops is begun anew
            self.choice = self._chosen(step)
            self.report.saves = saves
            _log.info("compiled: %s", self.choice.text)
        if self.rank.share(int(self.choice.compiled)):
            self._compile()

    def _chosen(self, step: int) -> Choice:
        earlier, missing, left = self._earlier, missing_compiler(), self.built.training.steps - step
        if earlier is not None and not (earlier.compiled and missing):
            return earlier
        if earlier is None and left < FEWEST_STEPS:
            return Choice(False, f"too short: {left} steps left")
        if missing:
            absent = f"no C++ compiler {missing} here"
            choice = Choice(False, absent if earlier is None else f"{absent} any more; before: {earlier.text}")
        else:
            found = self._by_trial(left)
            if found is None:  # the user stops the run, which will choose when it goes on
                self.file.unlink(missing_ok=True)
                return Choice(False, "stopped")
            choice = found
        self._write(choice)
        return choice

    def _by_trial(self, steps: int) -> Choice | None:
        """Return the choice of a cell with so many steps left; None if the user stopped it meanwhile."""
        built, machine = self.built, self.built.machine
        each = machine.batches_each(built.training.accumulate)
        if built.module.uncompilable:
            return Choice(False, built.module.uncompilable)
        if self.rank.count > 1 and machine.strategy == "fsdp":
            return Choice(False, "machine.strategy=fsdp: no device holds the model that a trial would compute")
        try:
            passes = Passes(built, built.module.device, self.context)
        except UntriableError as error:
            return Choice(False, str(error))
        kind = compile_trial.kind_of(built, passes)
        path = compile_trial.place_of(self._folder, kind)
        verdict = compile_trial.read(path, kind)
        if verdict is None:
            seconds = self._uncompiled_seconds(passes)
            alike = each * max(steps, machine.alike_steps if self._lasting else 0)
            if not worth_a_trial(seconds, alike):
                return Choice(False, f"too short for a trial: {alike} passes of {seconds * 1e3:.1f} ms")
            with contextlib.ExitStack() as stack:
                try:
                    ours = stack.enter_context(locked_unless(path.with_suffix(".lock"), self._stopping))
                except OSError as error:
                    return Choice(False, f"{self._folder}: {error.strerror}")
                if not ours:
                    return None
                verdict = compile_trial.read(path, kind)  # another process may have found it meanwhile
                if verdict is None:
                    verdict = self._tried(max(LEAST_LIMIT_SECONDS, ENDING_SHARE * seconds * alike))
                    if verdict is None:
                        return None if self._stopping() else Choice(False, f"{self._folder}: no space left")
                    compile_trial.write(path, kind, verdict)
        return by_verdict(verdict, each * steps)

    def _tried(self, limit: float) -> Verdict | None:
        # A cell that is killed in the middle of its trial does not try a second time: the trial may be to blame.
        self._write(Choice(False, "its trial was cut short"))
        return compile_trial.run(self.built, limit, self._stopping)

    def _uncompiled_seconds(self, passes: Passes) -> float:
        with passes.untouched():
            found = [passes.seconds(index, self.built.module.loss_and_carry) for index in range(1 + _MEASURED)]
        return statistics.median(found[1:])

    def _compile(self) -> None:
        """Compile the loss before it is needed, so that what fails does so while nothing has been trained."""
        module = self.built.module
        try:
            passes = Passes(self.built, module.device, self.context)
            started = passes.spent()
            module.compile_loss(self._give_up)
            with passes.untouched():
                for index in range(len(passes)):
                    passes.seconds(index, module.step_loss)
            spent = passes.spent() - started
        except Exception as error:
            if not of_compiler(error):
                raise
            module.uncompile()
            self._give_up(error)
            return
        if self.choice.compiled:
            self._note_start(passes, spent)

    def _note_start(self, passes: Passes, spent: float) -> None:
        kind = compile_trial.kind_of(self.built, passes)
        path = compile_trial.place_of(self._folder, kind)
        verdict = compile_trial.read(path, kind)
        if verdict is not None and not verdict.refused:
            least = min(spent, verdict.cold if verdict.warm is None else verdict.warm)
            compile_trial.write(path, kind, replace(verdict, warm=round(least, 2)))

    def _give_up(self, error: BaseException) -> None:
        """Go on uncompiled, which is equal but for rounding."""
        self.choice = Choice(False, f"it could not be compiled here ({first_line(error)}); before: {self.choice.text}")
        _log.warning("compiled: %s", self.choice.text)
        if self.rank.index == 0:
            with contextlib.suppress(OSError):
                self._write(self.choice)

    def _stopping(self) -> bool:
        return self.report.stop_requested

    def _read(self) -> Choice | None:
        try:
            content = json.loads(read_regular(self.file, 10_000))
            found = Choice(content["compiled"], content["why"])
            mine = content["cell"] == self.built.cell.id
        except (OSError, CorruptFileError, ValueError, KeyError, TypeError):
            return None
        return found if mine and isinstance(found.compiled, bool) and isinstance(found.why, str) else None

    def _write(self, choice: Choice) -> None:
        content = {"cell": self.built.cell.id, "compiled": choice.compiled, "why": choice.why}
        write_atomically(self.file, canonical_json(content).encode() + b"\n")
