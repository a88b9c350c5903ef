"""Further files: those given with --with, and those that lie where a configuration says."""

from __future__ import annotations

from pathlib import Path

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


def is_there(path: Path) -> bool:
    """Whether a path is one of a file; what no file system takes for a name is none."""
    try:
        return path.is_file()
    except OSError:
        return False
