"""refsim new: write files to start from."""

import shlex
from pathlib import Path

import click

from refsim.cli.answers.scaffold import declaring, kernel_files, registration, write_new
from refsim.cli.delivery import answers
from refsim.cli.registry import Group
from refsim.render import Column, Command, Document, Table, Wording

FILES = (Column("file", strong=True), Column("holds"))
_HOLDS = ("the kernel, in CUDA", "its declaration: test cases, launch, oracle", "its tests, for pytest")


@click.group(cls=Group)
def command() -> None:
    """Write files to start from."""


@command.command("kernel")
@click.argument("name")
@click.option(
    "--path",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("."),
    metavar="DIR",
    help="Folder for the files.",
)
@answers
def kernel(name: str, folder: Path) -> Document:
    """Write a kernel, its declaration and its tests.

    refsim writes NAME.cu, NAME_kernel.py (the declaration with an oracle) and test_NAME.py. All tests pass. Existing files
    stay as they are. pyproject.toml is not changed: the answer shows the lines that let `refsim verify` find the kernel.

    \b
      refsim new kernel scale
      refsim verify --kernels scale_kernel.py
      pytest test_scale.py
    """
    texts = kernel_files(name)
    lines = registration(folder, declaring(name))  # a pyproject.toml that cannot be read stops it before it writes
    written = write_new(folder, texts)
    rows = tuple((str(path), holds) for path, holds in zip(written, _HOLDS, strict=True))
    _, declaration, tests = written
    verify, test = (
        shlex.join(words) for words in (("refsim", "verify", "--kernels", str(declaration)), ("pytest", str(tests)))
    )
    steps: list[str] = [Command(f"verify  {verify}"), Command(f"test    {test}")]
    if lines:
        steps += [f"and for `refsim verify` alone, in {folder / 'pyproject.toml'}:", *map(Command, lines)]
    facts = {"verify": verify, "test": test, "pyproject": list(lines)}
    return Document(
        (Table(FILES, rows, key="files"), Wording(tuple(steps), facts, key="next", is_beside=True)),
        f"new kernel {name}",
    )
