"""`python -m placealg.playground FOLDER [WHEEL SHA256]`: write the page's folder, with a wheel of numpy where said."""

from __future__ import annotations

import sys
from pathlib import Path

from placealg.cli import attend_to
from placealg.cli.cache_folder import cache_folder
from placealg.errors import InputError
from placealg.playground.build import build


def _main() -> int:
    words = sys.argv[1:]
    if len(words) not in (1, 3):
        raise InputError("says FOLDER, or FOLDER WHEEL SHA256", where="playground")
    out = Path(words[0])
    if out.exists() and not (out / "index.html").is_file():
        raise InputError("is there, and is no playground", where=str(out))
    numpy = (Path(words[1]), words[2]) if words[1:] else None
    made = build(out, cache_folder("playground"), numpy)
    print(f"{out}: {len(made)} files, {sum(made.values()) / 1e6:.1f} MB; serve it with any web server: "
          f"python3 -m http.server --directory {out}")
    return 0


if __name__ == "__main__":
    sys.exit(attend_to(_main, alone=True))
