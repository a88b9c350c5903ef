"""No flag, argument or entry of a script, a command line or Python is passed over: drop, change or misspell any one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from test_command_lines import ARGV
from test_importers import DOCUMENTS, MINIATURES, fingerprint, name, options

from placealg.errors import InputError
from placealg.importers.read import read_words, reading_of
from placealg.importers.reading import Options, Reading

FLAG = re.compile(r"(?<=[\s\"'(])--(?P<key>[A-Za-z][\w.-]*)(?:[ =](?P<value>[^-\s\\\"'][^\s\\\"')]*))?")
SETTING = re.compile(r"\b(?P<key>[a-z_]+)=(?P<value>[^\s,()\\]+)")
ENTRY = re.compile(r'"(?P<key>[^"\n]+)": (?P<value>[^,\n]+)(?=[,\n])')
ARGUMENT = re.compile(r"\b(?P<key>[a-z_]+)=(?P<value>[^,()\n]+)(?=[,)\n])")
KEYS: Mapping[str, re.Pattern[str]] = {"megatron": FLAG, "maxtext": SETTING, "tp_plan": ENTRY, "dtensor": ENTRY,
                                       "torchtitan_py": ARGUMENT}

UNREACHED: Mapping[str, tuple[str, ...]] = {
    "experts.sh": ("--fp16", "--fp8-format hybrid", "--tensor-model-parallel-size 64", "--nproc_per_node 8"),
}
"""What a script does not run: branches that are not taken, a here-document; and what Slurm says, too."""

QUICK = ("parallelize.py.txt", "config_registry.py.txt", "configuration_mine.py.txt", "two_levels.sh")
TEXTS = [p for p in MINIATURES if p not in DOCUMENTS and p.parent.name in KEYS]


def other(value: str) -> str:
    """Another value of the same kind."""
    word = value.strip("\"'")
    turned = {"true": "false", "false": "true", "True": "False", "False": "True"}.get(word)
    return value.replace(word, turned or (str(int(word) + 1) if word.isdigit() else f"{word}x"))


def mutants(text: str, keys: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """(what was done, the text) with each key dropped, misspelt, and its value changed."""
    for found in keys.finditer(text):
        if text[text.rfind("\n", 0, found.start()) + 1:found.start()].lstrip().startswith("#"):
            continue
        start, end = found.span("key")
        yield f"dropped: {found[0]}", text[:found.start()] + text[found.end():]
        yield f"misspelt: {found[0]}", f"{text[:end - 1]}q{text[end - 1:]}"
        if found["value"]:
            start, end = found.span("value")
            yield f"changed: {found[0]}", text[:start] + other(found["value"]) + text[end:]


def tried(text: str, path: Path) -> Reading | str:
    try:
        return reading_of(text, str(path), options(path))
    except InputError as error:
        return error.what


@pytest.mark.parametrize("path", [pytest.param(p, id=name(p), marks=() if p.name in QUICK else pytest.mark.slow)
                                  for p in TEXTS])
def test_no_key_of_a_text_is_passed_over(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    whole = fingerprint(tried(text, path))
    if isinstance(whole, str):
        return
    made = mutants(text, KEYS[path.parent.name])
    alike = [what for what, mutant in made if fingerprint(tried(mutant, path)) == whole]
    assert [what for what in alike if what.partition(": ")[2] not in UNREACHED.get(path.name, ())] == []


def test_what_a_script_does_not_run_is_named_as_such() -> None:
    for name_, words in UNREACHED.items():
        (path,) = (p for p in TEXTS if p.name == name_)
        assert all(word in path.read_text(encoding="utf-8") for word in words)


def test_no_flag_of_a_command_line_is_passed_over() -> None:
    """Each flag with its values dropped, misspelt, and its last value changed."""
    def read(words: list[str]) -> object:
        try:
            return fingerprint(read_words(words, Options()))
        except InputError as error:
            return error.what

    whole = read(ARGV)
    starts = [k for k, word in enumerate(ARGV) if word.startswith("--") and k > ARGV.index("pretrain_gpt.py")]
    for k, following in zip(starts, [*starts[1:], len(ARGV)], strict=True):
        word = ARGV[k]
        assert read([*ARGV[:k], *ARGV[following:]]) != whole, f"dropped: {word}"
        assert read([*ARGV[:k], f"{word[:-1]}q{word[-1]}", *ARGV[k + 1:]]) != whole, f"misspelt: {word}"
        if following > k + 1:
            assert read([*ARGV[:following - 1], other(ARGV[following - 1]), *ARGV[following:]]) != whole, word
