"""Options of a command as the fields of one class: each name, type and help text stands once."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, dataclass_transform, get_args

import click

Command = Callable[..., Any]
DIRECTORY_PATH = click.Path(path_type=Path, file_okay=False)


def option(help: str, *flags: str, default: Any = None, **more: Any) -> Any:
    """Return a field that an option sets. Without `flags`, its name makes the flag: save_ptx is --save-ptx.

    A `bool` is a switch, a `tuple[X, ...]` may be repeated. Help pages show a `Path` as FILE, and a text without a type
    as NAME. `more` goes to click.option.
    """
    return field(default=default, metadata={"declare": click.option, "flags": flags, "more": {"help": help, **more}})


def argument(metavar: str | None = None, **more: Any) -> Any:
    """Return a field that an argument sets; a `tuple[X, ...]` takes all words, and `X | None` may be left out."""
    more = more if metavar is None else {"metavar": metavar, **more}
    return field(default=None, metadata={"declare": click.argument, "flags": (), "more": more})


@dataclass_transform(frozen_default=True)
class Options:
    """A frozen dataclass whose fields are options and arguments, or other Options that stand for all their fields.

    A help page that has sections shows the options under `heading`.
    """

    heading: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        for name, kind in cls.__annotations__.items():
            declared: Any = vars(cls).get(name)
            if isinstance(declared, Field) and declared.default is None:
                declared.default = () if ... in get_args(kind) else False if kind is bool else None
        dataclass(frozen=True)(cls)


def with_options(function: Command) -> Command:
    """Add the options of the Options that annotate its parameters; the function gets one object of each."""
    asked = {name: kind for name, kind in function.__annotations__.items() if _is_options(kind)}

    @functools.wraps(function)
    def run(**given: Any) -> Any:
        """Call the function with an object for the options of each class."""
        return function(**{name: _made(kind, given) for name, kind in asked.items()}, **given)

    taking: Any = run
    for heading, each in reversed([each for kind in asked.values() for each in _declared(kind)]):
        taking = _decorator(each)(taking)
        taking.__click_params__[-1].heading = heading
    return taking  # type: ignore[no-any-return]


def _is_options(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Options)


def _declared(kind: Any) -> Iterator[tuple[str, Field[Any]]]:
    """Yield the headings and fields of options, those of a field's own Options in its place."""
    for each in fields(kind):
        yield from _declared(each.type) if _is_options(each.type) else ((kind.heading, each),)


def _made(kind: Any, given: dict[str, Any]) -> Any:
    """Return an object of Options, and take its fields out of `given`."""
    found = ((each.name, _made(each.type, given) if _is_options(each.type) else None) for each in fields(kind))
    return kind(**{name: given.pop(name) if made is None else made for name, made in found})


def _decorator(each: Field[Any]) -> Command:
    """Return the decorator of click that adds a field. Its annotation says what the field takes."""
    declare, flags = each.metadata["declare"], each.metadata["flags"]
    kinds, more = get_args(each.type) or (each.type,), each.metadata["more"]
    said: dict[str, Any] = {"type": click.Path(path_type=Path)} if Path in kinds else {}
    if declare is click.argument:
        said |= {"nargs": -1} if ... in kinds else {"required": not str(each.type).endswith("None")}
    else:
        flags = flags or (f"--{each.name.replace('_', '-')}",)
        metavar = "FILE" if Path in kinds else getattr(more.get("type"), "metavar", "") if "type" in more else "NAME"
        said |= {"is_flag": True} if each.type is bool else {"metavar": metavar} if metavar else {}
        said |= {"multiple": True} if each.default == () else {} if each.default is None else {"default": each.default}
    decorator: Command = declare(*flags, each.name, **(said | more))
    return decorator
