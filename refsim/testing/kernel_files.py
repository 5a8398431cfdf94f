"""Kernel declarations by path: the files that pyproject.toml names, else the kernels bundled with refsim."""

import ast
import hashlib
import importlib.util
import os
import sys
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from refsim.bundled import bundled
from refsim.device.kernel_sources import paths_of
from refsim.errors import Kind, RefsimError, unknown
from refsim.files.access import checked_path, read_whole
from refsim.kernels import Kernel
from refsim.testing.user_code import is_foreign, location

MAX_KERNEL_BYTES = 16 << 20


def find_kernels(paths: Iterable[str | Path] | None = None) -> tuple[Kernel, ...]:
    """Return the kernels that Python files declare as `KERNELS`; the files are executed, so they must be trusted.

    Without `paths`: `[tool.refsim] kernels` of the pyproject.toml in the working directory, else the bundled files.
    Each kernel knows its file (`declared_in`). Raises RefsimError for files that cannot be read or declare no kernels,
    and for two kernels of one name. Source: defined here.
    """
    kernels, errors = kernels_and_errors(paths)
    for error in errors.values():
        raise error
    return kernels


def names_without_running(paths: Iterable[Path] = ()) -> list[str]:
    """Read the names of kernels that a shell can offer; no file of a project is executed, imported or waited for.

    A name is read where it is written as text: `Kernel("name", ...)`, and every call listed in `KERNELS = (...)`, with
    the name first or as `name=`. Names that a file computes, and files that cannot be read, are left out.
    """
    try:
        files = [*paths] or kernel_paths()
    except RefsimError:
        return []
    if files == bundled_kernel_files():
        return [kernel.name for kernel in find_kernels(files)]
    return list(dict.fromkeys(name for file in files for name in _written_names(file)))


def _written_names(file: Path) -> list[str]:
    """Return the names of kernels that the text of a file contains, in its order."""
    try:
        tree = ast.parse(read_whole(file, MAX_KERNEL_BYTES, "a kernel file"))
    except (RefsimError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    listed = {
        call
        for each in tree.body
        if isinstance(each, ast.Assign | ast.AnnAssign)
        for target in (each.targets if isinstance(each, ast.Assign) else [each.target])
        if isinstance(target, ast.Name) and target.id == "KERNELS"
        for call in getattr(each.value, "elts", ())
    }
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call)]
    named = [
        value.value
        for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset))
        if call in listed or getattr(call.func, "attr", getattr(call.func, "id", "")) == "Kernel"
        for value in [*call.args[:1], *(word.value for word in call.keywords if word.arg == "name")]
        if isinstance(value, ast.Constant) and isinstance(value.value, str)
    ]
    return named


def kernels_and_errors(paths: Iterable[str | Path] | None = None) -> tuple[tuple[Kernel, ...], dict[str, RefsimError]]:
    """Return the kernels of all files that can be read, and the errors by file, or by a name that several kernels have.

    A kernel whose name is taken is not among the kernels.
    """
    files = [Path(path) for path in paths] if paths is not None else kernel_paths()
    kernels: list[Kernel] = []
    errors: dict[str, RefsimError] = {}
    for file in files:
        try:
            kernels += _declared(file)
        except RefsimError as error:
            errors[str(file)] = error
    names = [kernel.name for kernel in kernels]
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        errors[name] = RefsimError("name-taken", f"two kernels are called {name!r}", where=", ".join(map(str, files)))
    return tuple(kernel for kernel in kernels if kernel.name not in errors), errors


def kernel_named(name: str, paths: Iterable[str | Path] | None = None) -> Kernel:
    """Return the kernel called `name`; the error for an unknown name lists the nearest names.

    kernel_named("linear").name is "linear". Raises RefsimError `unknown-kernel`, or the error of a file that may have
    declared the kernel. Source: defined here.
    """
    found, errors = kernels_and_errors(paths)
    kernels = {kernel.name: kernel for kernel in found}
    if name not in kernels:
        for error in (errors[name],) if name in errors else errors.values():
            raise error
        error = unknown("kernel", name, sorted(kernels))
        error.help = f"{name} is a file: use --kernels FILE.py" if name.endswith((".cu", ".ptx", ".py")) else error.help
        raise error
    return kernels[name]


def kernel_paths(folder: Path | None = None) -> list[Path]:
    """Return the kernel files of a folder's pyproject.toml (default: the working directory), else the bundled ones."""
    project = (folder or Path.cwd()) / "pyproject.toml"
    listed = paths_of(project, "kernels") if os.path.lexists(project) else []
    return listed or bundled_kernel_files()


def bundled_kernel_files() -> list[Path]:
    """Return the kernel files bundled with refsim."""
    return sorted(bundled_kernels().parent.glob("*bindings.py"))


def project_folder(folder: Path) -> Path | None:
    """Return the nearest folder, this one or above it, that has a pyproject.toml or a .git; None without one."""
    marks = ("pyproject.toml", ".git")
    return next(
        (each for each in (folder, *folder.parents) if any(os.path.lexists(each / mark) for mark in marks)), None
    )


def bundled_kernels(name: str = "bindings.py") -> Path:
    """Return a kernel file of gpu/, in the installed package or in the checkout that refsim was imported from."""
    return bundled(f"gpu/{name}")


def load_kernel_file(path: str | Path) -> ModuleType:
    """Return the module of a kernel file, executed once per version of the file; raise RefsimError if that fails."""
    file = checked_path(path)
    try:
        read_whole(file, MAX_KERNEL_BYTES, "a kernel file")
    except RefsimError as error:
        raise RefsimError("no-kernel-file", error.what, str(file), help=error.help, kind=Kind.UNREADABLE) from error
    resolved = file.resolve()
    return _module(resolved, resolved.stat().st_mtime_ns)


def imported_files(since: Collection[str]) -> tuple[Path, ...]:
    """Return the Python files of the user's modules that were imported after the modules in `since` (names)."""
    return tuple(Path(file) for _, file in _own_modules(since))


def forget_modules(since: Collection[str]) -> None:
    """Unload kernel files and the user's modules imported after `since`, so that the next import reads them again."""
    for name, _ in _own_modules(since):
        del sys.modules[name]
    _module.cache_clear()
    importlib.invalidate_caches()


def _own_modules(since: Collection[str]) -> list[tuple[str, str]]:
    """Return (name, file) of the user's modules that are not in `since`."""
    fresh = [
        (name, getattr(module, "__file__", None)) for name, module in list(sys.modules.items()) if name not in since
    ]
    return [
        (name, file)
        for name, file in fresh
        if isinstance(file, str) and file.endswith(".py") and name != "__main__" and not is_foreign(file)
        if Path(file).is_file()  # torch.ops is called _ops.py, and is no file
    ]


def _declared(file: Path) -> tuple[Kernel, ...]:
    """Return the kernels that a file declares, each with its file; raise RefsimError no-kernels without any."""
    kernels = getattr(load_kernel_file(file), "KERNELS", None)
    if not isinstance(kernels, (tuple, list)) or not kernels or not all(isinstance(k, Kernel) for k in kernels):
        raise RefsimError("no-kernels", "a kernel file ends in KERNELS = (Kernel(...), ...)", where=str(file))
    return tuple(replace(kernel, declared_in=file.resolve()) for kernel in kernels)


@lru_cache(maxsize=64)
def _module(file: Path, modified_ns: int) -> ModuleType:
    """Return the executed module of a file; raise RefsimError with the line if the file raises."""
    name = f"refsim_kernels_{hashlib.sha256(f'{file}:{modified_ns}'.encode()).hexdigest()[:12]}"
    specification = importlib.util.spec_from_file_location(name, file)
    if specification is None or specification.loader is None:
        help = f"give the declaration, e.g. {file.stem}_kernel.py; `refsim new kernel` writes one"
        raise RefsimError("no-kernel-file", "not a Python file", str(file), help=help, kind=Kind.UNREADABLE)
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # type hints of recipes are resolved there
    try:
        specification.loader.exec_module(module)
    except (RefsimError, KeyboardInterrupt):
        raise
    except BaseException as error:  # also sys.exit(): a file that ends the program verifies nothing
        what = f"the file raised {type(error).__name__}: {error}"
        help = ""
        if isinstance(error, ModuleNotFoundError):
            help = f"a module next to the kernel file is found by PYTHONPATH={file.parent}, or where its package is installed"
        raise RefsimError(
            "user-code-raised", what, where=str(file), help=help, kind=Kind.UNREADABLE, place=location(error)
        ) from error
    return module
