"""Write the site: `make_site.py FOLDER [PLAYGROUND]` makes one of the README, docs/ and an API reference, by Sphinx.

The pages stay as they are; a copy of them gets a table of contents, a page with every public name, and behind each
session that asks about an expression a link into the playground, where its folder is given. A link that leads nowhere,
and anything else that Sphinx warns of, ends the build with exit code 1.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from inspect import isclass, isroutine
from pathlib import Path
from urllib.parse import urlencode

import placealg as pa
from placealg.playground.page import is_file

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("README.md", "CHANGELOG.md", "LICENSE", "CITATION.cff", "docs/*.md", "pictures/*", "proofs/coq/README.md")
CONTENTS = "\n```{toctree}\n:hidden:\n:glob:\n\nAPI reference <api>\ndocs/*\nproofs/coq/README\nCHANGELOG\n```\n"
SESSION = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ASKED = re.compile(r"^\$ placealg (?:prove|cost|show) (\S+)(.*)$", re.MULTILINE)


def tried(page: str, up: str) -> str:
    """The page with a link into the playground behind each session that asks about an expression."""
    def behind(block: re.Match[str]) -> str:
        links = dict.fromkeys(link for word, rest in ASKED.findall(block[1]) if (link := address(word, rest)))
        return block[0] + "".join(f'\n\n<a href="{up}playground/index.html#{link}">try it</a>' for link in links)
    return SESSION.sub(behind, page)


def address(word: str, rest: str) -> str:
    """What stands behind the # of the playground's address for a command; "" where it is about a file.

    >>> address("zero3*tp_sp", " --model gpt --set dp=8"), address("proofs/x.toml", "")
    ('strategy=zero3%2Atp_sp&model=gpt', '')
    """
    if is_file(word) or "/" in word or "." in word:
        return ""
    model = re.search(r"--model (\w[\w.-]*)", rest)
    return urlencode({"strategy": word, **({"model": model[1]} if model else {})})


def reference() -> str:
    """A page with every public name: functions, classes with what is public of them, and values."""
    parts = ["# API reference\n\nThe names of `import placealg as pa`.\n"]
    for name in sorted(pa.__all__, key=str.lower):
        value = getattr(pa, name)
        kind = "autoclass" if isclass(value) else "autofunction" if isroutine(value) else "autodata"
        members = "   :members:\n" if kind == "autoclass" else ""
        parts.append(f"```{{eval-rst}}\n.. {kind}:: placealg.{name}\n{members}```\n")
    return "\n".join(parts)


def main() -> int:
    """Lay the pages out, and run Sphinx."""
    from sphinx.cmd.build import main as sphinx  # of an environment of its own

    out, playground = Path(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2:] else None
    with tempfile.TemporaryDirectory() as folder:
        laid = Path(folder)
        for path in (p for pattern in COPIED for p in ROOT.glob(pattern)):
            there = laid / path.relative_to(ROOT)
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, there)
            if path.suffix == ".md" and playground:
                there.write_text(tried(path.read_text(encoding="utf-8"), "../" if path.parent != ROOT else ""), "utf-8")
        with (laid / "README.md").open("a", encoding="utf-8") as page:
            page.write(CONTENTS)
        (laid / "api.md").write_text(reference(), encoding="utf-8")
        code = int(sphinx(["-q", "-W", "--keep-going", "-c", str(ROOT / "docs"), str(laid), str(out)]))
    shutil.copy(out / "README.html", out / "index.html")
    if playground:
        shutil.copytree(playground, out / "playground", dirs_exist_ok=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
