"""Questions for language models, in the form of lm-eval's tasks.

prepare_data.py continuations                     docstring continuations, from the validation documents of
                                                  docstrings-512; --vocabulary 2048: from docstrings-2048
"""

from paper_repro.base.errors import UsageError
from paper_repro.base.files import absent, find_data
from paper_repro.datamodules.preparation import Preparation, Request

DEFAULT_VOCABULARY = 512


def continuations(request: Request) -> None:
    """Write the questions of docstring continuations and the files by which lm-eval finds them."""
    from paper_repro.datamodules import continuations

    size = request.number("vocabulary") or DEFAULT_VOCABULARY
    folder = request.root / continuations.FOLDER.format(vocabulary=size)
    if request.verify:
        manifest = continuations.check(folder)
    else:
        name = f"docstrings-{size}/{continuations.MANIFEST}"
        corpus = find_data(name, request.root)
        if corpus is None:
            command = f"python scripts/prepare_data.py docstrings --vocabulary {size}"
            raise UsageError(absent(name, request.root, command))
        manifest = continuations.prepare(corpus.parent, folder)
    count = len(continuations.LETTERS)
    print(f"{count} tasks of {continuations.QUESTIONS} questions, from {manifest['corpus']['documents']:,} documents")
    print(f"{folder / continuations.MANIFEST}: whole, {len(manifest['files'])} files")


PREPARATIONS = {"continuations": Preparation(continuations, ("vocabulary",))}
