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


SCRIPT = """
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

def train(model):
    {mesh}
    for block in model.layers:
        parallelize_module(block, mesh["tp"], {{
            "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel()}})
        {block}
    {root}
"""
TYPES = {"torch.bfloat16": 2, "torch.float32": 4, "torch.float16": 2, "None": 0}


@pytest.mark.parametrize("seed", range(12))
def test_what_a_script_says_beside_its_plan(seed: int) -> None:
    draw = Random(seed)
    sizes = {"dp_replicate": draw.choice([2, 3]), "dp_shard": draw.choice([4, 8]), "tp": draw.choice([2, 4])}
    names = [n for n in sizes if n != "dp_replicate" or seed % 3]
    own = {n: draw.choice([n, "fsdp"]) if n == "dp_shard" else n for n in names}
    gathered, reduced = draw.choice(list(TYPES)), draw.choice(list(TYPES))
    kept = draw.random() < 0.5
    policy = f"MixedPrecisionPolicy(param_dtype={gathered}, reduce_dtype={reduced})"
    call = f"fully_shard(block, mesh=data, mp_policy={policy}{', reshard_after_forward=False' if kept else ''})"
    mesh = f"mesh = init_device_mesh('cuda', {tuple(sizes[n] for n in names)}, mesh_dim_names={tuple(own.values())})"
    reading = reading_of(SCRIPT.format(mesh=mesh, block=call, root=call.replace("block", "model")), "s.py", Options())
    shard = "dp_shard" if "dp_replicate" in names else "dp"
    assert reading.strategy.mesh.sizes() == {**({"dp_replicate": sizes["dp_replicate"]} if shard != "dp" else {}),
                                             shard: sizes["dp_shard"], "tp": sizes["tp"]}
    assert reading.strategy.state("parameters").modes[shard].value == "S*"
    assert (reading.strategy.lifetime(shard) == "microbatch") == kept
    types = [int(reading.strategy.option("types", name)) for name in ("wire_w", "wire")]
    assert types == [TYPES[gathered] or 4, TYPES[reduced] or TYPES[gathered] or 4]


@pytest.mark.parametrize(("mesh", "block", "key"), [
    ("mesh = init_device_mesh('cuda', (n, 2), mesh_dim_names=('dp', 'tp'))", "pass", "init_device_mesh"),
    ("mesh = init_device_mesh('cuda', (4, 2), mesh_dim_names=('pp', 'tp'))", "pass", "init_device_mesh"),
    ("mesh = make_mesh()", "pass", "degrees"),
    ("mesh = make_mesh()", "fully_shard(block, reshard_after_forward=last)", "reshard_after_forward"),
    ("mesh = make_mesh()", "fully_shard(block, mp_policy=MixedPrecisionPolicy(dtype))", "MixedPrecisionPolicy"),
    ("mesh = make_mesh()", "checkpoint_wrapper(block)", "checkpoint_wrapper")])
def test_what_a_script_computes_is_unsaid(mesh: str, block: str, key: str) -> None:
    reading = reading_of(SCRIPT.format(mesh=mesh, block=block, root=""), "s.py", Options())
    assert any(item.key == key for item in reading.unsaid)
    assert set(reading.strategy.mesh.sizes()) == set()
