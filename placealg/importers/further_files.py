"""Further files: those given with --with, and those that lie where a configuration says."""

from __future__ import annotations

from pathlib import Path

from placealg.importers.document import read_text
from placealg.importers.reading import Options


def beside(named: str, file: str, options: Options) -> str | None:
    """The path of a file that `file` names: one of --with by its name, else beside `file`; None where there is none."""
    last = Path(named).name
    for given in options.files:
        if Path(given).name == last:
            return given
    folder = Path(file).parent
    for path in (folder / named, folder / last):
        if is_there(path) and ".." not in Path(named).parts:
            return str(path)
    alone = [given for given in options.files if Path(given).suffix == Path(last).suffix]
    return alone[0] if len(alone) == 1 else None


def text_beside(named: str, file: str, options: Options) -> tuple[str, str] | None:
    """(the text, the path) of a file that `file` names: one that a script writes, or as `beside` finds it."""
    if named in options.written:
        return options.written[named], named
    path = beside(named, file, options)
    return (read_text(path), path) if path else None


def module_beside(module: str, file: str, options: Options) -> str | None:
    """The file of a Python module as `file` imports it; None if it is not here.

    It is one of --with in a folder named as the module's package, else in the folders around `file`, else one of --with
    that has the module's last name alone; of several the one that has most of its names.
    """
    names = module.lstrip(".").split(".") if module.strip(".") else []
    level = len(module) - len(module.lstrip("."))
    folders = [Path(file).absolute().parents[level - 1]] if level else list(Path(file).absolute().parents)
    ends = [Path(*names).with_suffix(".py") if names else Path("__init__.py"), Path(*names) / "__init__.py"]
    given = {path: _alike(Path(path), names) for path in options.files if path.endswith(".py")}
    best = max(given, key=lambda path: given[path], default=None)
    if best is not None and given[best] >= min(2, len(names)) > 0:
        return best
    around = next((str(folder / end) for folder in folders for end in ends if is_there(folder / end)), None)
    return around or (best if best is not None and given[best] else None)


def _alike(path: Path, names: list[str]) -> int:
    """How many of a module's names, from its last on, a path ends with; a package is its __init__.py."""
    parts = (*path.parts[:-1], *((path.stem,) if path.stem != "__init__" else ()))
    return next((n for n, (a, b) in enumerate(zip(reversed(parts), reversed(names), strict=False)) if a != b),
                min(len(parts), len(names)))


def is_there(path: Path) -> bool:
    """Whether a path is one of a file; what no file system takes for a name is none."""
    try:
        return path.is_file()
    except OSError:
        return False
