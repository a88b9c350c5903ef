"""Data that never changes, and its hash in another process."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest

from placealg.frozen import FrozenMap
from placealg.models.config import resolve_model

LOADS = """
import pickle, sys
from placealg.frozen import FrozenMap
from placealg.models.config import resolve_model
found = pickle.load(sys.stdin.buffer)
here = FrozenMap({"dp": 8}) if isinstance(found, FrozenMap) else resolve_model("gpt").graph
sys.exit(0 if found == here and hash(found) == hash(here) and found in {here} else 1)
"""


@pytest.mark.parametrize("made", [FrozenMap({"dp": 8}), resolve_model("gpt").graph], ids=["map", "graph"])
def test_what_is_unpickled_in_a_process_that_hashes_text_otherwise_is_found_there(made: Any) -> None:
    assert hash(made) == hash(pickle.loads(pickle.dumps(made)))  # the hash is there before it is pickled
    for seed in ("1", "2"):
        assert subprocess.run([sys.executable, "-c", LOADS], input=pickle.dumps(made), check=False,
                              env={"PYTHONHASHSEED": seed}).returncode == 0
