"""Writes results/models/NAME: what the example on the card of a model that comes with the package prints and draws.

    model_examples.py            all models
    model_examples.py NAME ...   some

Each runs the command that paper_repro/weights/weights.yaml gives, with images of scikit-image: "photograph.jpg" is its
astronaut, "face.png" the last face that CET was tested on.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":  # before imports that another Python lacks
    runpy.run_path(str(Path(__file__).with_name("environment.py")), {"SCRIPT": __file__}, "__main__")

import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from paper_repro.base.errors import RESULTS, ROOT, UsageError, nearest, parse, run_main
from paper_repro.exports.card import listed

PHOTOGRAPH, FACE, LAST_FACE = "photograph.jpg", "face.png", 99
KEPT = ("figure.svg", "figure.csv")


def main(arguments: Sequence[str]) -> int:
    words = parse(arguments, ("--help", "-h"), ())
    if words.flags:
        print(__doc__)
        return 0
    commands = {name: shlex.split(model["try"]) for name, model in listed()["models"].items() if "try" in model}
    if unknown := [name for name in words.names if name not in commands]:
        raise UsageError(f"{unknown[0]}: no model with an example{nearest(unknown[0], commands)}")
    for name in words.names or commands:
        write(RESULTS / "models" / name, commands[name])
    return 0


def write(folder: Path, command: Sequence[str]) -> None:
    """Run a command of scripts/ and keep what it prints and draws in a folder."""
    from PIL import Image
    from skimage import data

    with tempfile.TemporaryDirectory() as drawn:
        images = {PHOTOGRAPH: data.astronaut(), FACE: (data.lfw_subset()[LAST_FACE] * 255).round().astype("uint8")}
        for name, pixels in images.items():
            Image.fromarray(pixels).save(Path(drawn) / f"{name}.png")
        words = [f"{drawn}/{word}.png" if word in images else word for word in command]
        out = ["--out", drawn] if words[0] == "think.py" else []
        script = [sys.executable, str(ROOT / "scripts" / words[0]), *words[1:], *out]
        done = subprocess.run(script, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "example.txt").write_text(done.stdout)
        for path in (path for path in Path(drawn).rglob("*") if path.name in KEPT):
            shutil.copyfile(path, folder / path.name)
    print(folder)


if __name__ == "__main__":
    sys.exit(run_main(main))
