"""`placealg completion SHELL`: what a shell completes after `placealg`, read from the parser and the catalogue."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass

from placealg.cli.output import print_text


@dataclass(frozen=True)
class Words:
    """What a command takes: option -> the values that are completed behind it; and the names that stand alone.

    An option without a value maps to None, one whose values are not known to ().
    """

    options: Mapping[str, tuple[str, ...] | None]
    names: tuple[str, ...]
    files: bool


def words_of(command: str) -> Words:
    """The words of a command, as its parser has them.

    >>> words_of("list").options["--format"]
    ('text', 'json')
    """
    from placealg.cli.parser import parsers

    return _words(parsers()[command], _names())


def _names() -> Mapping[str, tuple[str, ...]]:
    """Metavar -> the names that can stand for it."""
    from placealg.cli.bug_files import names as bugs
    from placealg.cli.parser import COMPLETED_SHELLS
    from placealg.models.config import SYMBOLIC, shipped
    from placealg.strategy.catalogue import names as strategies
    from placealg.strategy.precision import precisions

    models, known = tuple(sorted({*shipped(), *SYMBOLIC})), tuple(strategies())
    return {**dict.fromkeys(("STRATEGY", "OLD", "NEW", "A", "B"), known), "FILE|NAME": models,
            "model NAME": models, "museum NAME": bugs(), "explain NAME": (*known, *bugs(), "published"),
            "--precision": tuple(precisions()), "SHELL": COMPLETED_SHELLS}


def _words(parser: argparse.ArgumentParser, names: Mapping[str, tuple[str, ...]]) -> Words:
    command = parser.prog.split()[-1]
    options: dict[str, tuple[str, ...] | None] = {}
    alone: list[str] = []
    files = False
    for action in parser._actions:
        metavar = str(action.metavar or "")
        known = tuple(map(str, action.choices or ())) or names.get(
            action.option_strings[0] if action.option_strings else "", ()) or names.get(
            f"{command} {metavar}", ()) or names.get(metavar, ())
        takes = action.nargs != 0 and not isinstance(action, argparse.BooleanOptionalAction)
        for option in (o for o in action.option_strings if o.startswith("--")):
            options[option] = known if takes else None
        if not action.option_strings:
            alone += known
            files = files or metavar in ("STRATEGY", "OLD", "NEW", "A", "B", "FILE", "DIR") or command == "model"
    return Words(options, tuple(dict.fromkeys(alone)), files)


def bash() -> str:
    """A function for bash's `complete`."""
    from placealg.cli.parser import COMMANDS, parsers

    names, made = _names(), parsers()
    lines = ["_placealg() {", '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
             "  local words files", '  if [ "$COMP_CWORD" -eq 1 ]; then',
             f'    COMPREPLY=($(compgen -W "{" ".join(COMMANDS)} --help --version" -- "$word")); return', "  fi",
             '  case "${COMP_WORDS[1]}" in']
    for command in COMMANDS:
        found = _words(made[command], names)
        lines += [f"  {command})", f'    words="{" ".join((*found.options, *found.names))}"; files={int(found.files)}',
                  '    case "$before" in']
        lines += [f'    {option}) words="{" ".join(values)}"; files={int(not values or option == "--model")};;'
                  for option, values in found.options.items() if values is not None]
        lines += ["    esac;;"]
    lines += ["  *) return;;", "  esac", '  COMPREPLY=($(compgen -W "$words" -- "$word"))',
              '  [ "$files" = 1 ] && COMPREPLY+=($(compgen -f -- "$word"))', "  return 0", "}",
              "complete -o filenames -F _placealg placealg"]
    return "\n".join(lines) + "\n"


def zsh() -> str:
    """The same function for zsh, which completes as bash does once it is told to."""
    return "autoload -U +X bashcompinit && bashcompinit\n" + bash()


def fish() -> str:
    """A line of `complete` for every word of every command."""
    from placealg.cli.parser import COMMANDS, parsers

    names, made = _names(), parsers()
    lines = ["complete -c placealg -f"]
    lines += [f"complete -c placealg -n __fish_use_subcommand -a {command} -d {_quoted(text)}"
              for command, (text, _) in COMMANDS.items()]
    for command in COMMANDS:
        found = _words(made[command], names)
        head = f"complete -c placealg -n '__fish_seen_subcommand_from {command}'"
        if found.names:
            lines.append(f"{head} -a {_quoted(' '.join(found.names))}")
        if found.files:
            lines.append(f"{head} -F")
        for option, values in found.options.items():
            behind = "" if values is None else f" -x -a {_quoted(' '.join(values))}" if values else " -r"
            lines.append(f"{head} -l {option.removeprefix('--')}{behind}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    r"""Text as one word of fish.

    >>> print(_quoted("a device's memory"))
    'a device\'s memory'
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def completion(chosen: Namespace) -> int:
    """`placealg completion SHELL`."""
    print_text({"bash": bash, "zsh": zsh, "fish": fish}[chosen.shell]())
    return 0
