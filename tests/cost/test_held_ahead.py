"""What overlaps is held longer: flat buffers beside the copy in use, or what is gathered ahead."""

from __future__ import annotations

from typing import Any

import pytest

import placealg as pa
from placealg.cost.document import OVERLAPPED, assumed
from placealg.strategy.spec import overlay


@pytest.mark.parametrize(("said", "units"), [
    ({}, 1), ({"waits": "fsdp2", "buffers": 2}, 3), ({"waits": "fsdp2", "buffers": 3}, 4),
    ({"waits": "fsdp2"}, 1), ({"waits": "deepspeed", "prefetch": 2}, 3), ({"waits": "deepspeed", "gather": False}, 1),
    ({"waits": "megatron", "prefetch": 2}, 1)])
def test_the_transient_is_what_the_engine_holds(said: dict[str, Any], units: int) -> None:
    found = pa.derive(overlay(pa.zero3(), {"overlap": said} if said else {}), pa.abstract())
    at = {"dp": 8, "Psi": 1000, "Psi_unit": 100, "w": 2, "g": 4, "o": 12, "wire": 4}
    assert pa.memory(found).transient.value(**at) == 100 * (2 * units + 4)
    assert (OVERLAPPED in assumed(found)) == (said.get("waits") in ("fsdp2", "deepspeed"))
