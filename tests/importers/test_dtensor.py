"""Plans of DTensor: the layout in which a plan leaves the logits decides whether they are gathered before the loss."""

from __future__ import annotations

from random import Random

import pytest

from placealg.importers.read import reading_of
from placealg.importers.reading import Options

PLAN = """
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

def apply(model, mesh):
    parallelize_module(model, mesh, {{
        {other}
        "{name}": ColwiseParallel({words}),
    }})
"""
OTHERS = ('"norm": SequenceParallel(),', '"embed_tokens": RowwiseParallel(input_layouts=Replicate()),',
          '"layers.*.mlp.gate_proj": ColwiseParallel(), "layers.*.mlp.down_proj": RowwiseParallel(),')
LEFT = {"": False, "output_layouts=Replicate()": True, "output_layouts=Shard(-1), use_local_output=False": False,
        "input_layouts=Shard(1), output_layouts=Replicate()": True, "output_layouts=(Replicate(),)": True,
        "input_layouts=Replicate()": False, "output_layouts=Shard(-1) if loss_parallel else Replicate()": False}
"""Words of the last product -> whether its logits are gathered."""


@pytest.mark.parametrize("seed", range(14))
def test_the_layout_of_logits(seed: int) -> None:
    draw = Random(seed)
    words = list(LEFT)[seed % len(LEFT)]
    name = draw.choice(["output", "lm_head", "model.lm_head"])
    reading = reading_of(PLAN.format(other=" ".join(draw.sample(OTHERS, draw.randrange(3))), name=name, words=words),
                         "plan.py", Options())
    dims = reading.strategy.dims["tp"]
    assert "vocab" in dims and ("head.loss.none" in dims) == LEFT[words]
    assert any(item.key == name for item in reading.unsaid) == ("if" in words)
