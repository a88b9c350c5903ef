"""Configurations that are broken, hostile or of nothing: one line with file and line, exit 2, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import run_placealg

from placealg.importers.document import MAX_BYTES
from placealg.importers.read import read

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
DEEP = "{" * 0 + '{"zero_optimization": ' * 80 + "1" + "}" * 80
GOOD = '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'


@pytest.mark.parametrize(("name", "content", "said"), [
    ("t.json", '{\n"zero_optimization": {"stage": ZERO_STAGE}}', "t.json:2: ZERO_STAGE is no JSON value"),
    ("t.json", '{"zero_optimization":\n {"stage": 1, "stage": 2}}', "t.json:2: 'stage' stands twice"),
    ("t.json", '{"zero_optimization": {"stage": 2},', "t.json:1: expected a key"),
    ("t.json", DEEP, "nested more than"),
    ("t.json", '{"zero_optimization": {"stage": [1, 2]}}', "search space"),
    ("t.json", '{"zero_optimization": {"stage": 7}}', "expected 0, 1, 2 or 3"),
    ("t.json", '{"zero_optimization": {"stge": 2}}', "did you mean 'zero_optimization.stage'"),
    ("t.json", '{"x": 1}', "of no format that is known here"),
    ("t.json", "[1, 2]", "holds no table of keys"),
    ("t.json", '{"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}',
     "is not micro 2 x accumulation 2"),
    ("t.json", b'{"a": "\xff"}', "is not UTF-8 text"),
    ("t.bin", b"\x7fELF\x00\x01", "is no text: it holds a zero byte"),
    ("t.yaml", BOMB, "values, aliases written out"),
    ("t.yaml", "a: &a\n  b: *a\n", "an alias is inside the node that it names"),
    ("t.yaml", "distributed_type: !!python/object/apply:os.system ['touch ran']\n", "would build an object"),
    ("t.yaml", "distributed_type: FSDP\ndistributed_type: NO\n", "t.yaml:2: 'distributed_type' stands twice"),
    ("t.yaml", "distributed_type: [FSDP\n", "not YAML"),
    ("t.yaml", "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: no.json\n",
     "t.yaml:3: deepspeed_config_file names another file, no.json"),
    ("t.yaml", "distributed_type: FDSP\n", "distributed_type FDSP is not read"),
    ("t.yaml", "finetuning_type: full\nbase_model: x\ndatasets: []\n", "may be"),
    ("t.yaml", "distributed_type: FSDP\nfsdp_config:\n  fsdp_activation_checkpointing_offload: true\n",
     "t.yaml:3: the inputs of checkpointed layers rest on the host"),
    ("t.yaml", "distributed_type: MEGATRON_LM\nmegatron_lm_tp_size: 4\n", "t.yaml:2: 'megatron_lm_tp_size'"),
    ("t.yaml", "distributed_type: DEEPSPEED\nnum_processes: 8\nparallelism_config:\n  dp_shard_size: 3\n  sp_size: 2\n",
     "t.yaml:4: dp_shard_size 3 x 2 of sequence parallelism is not 8 devices"),
    ("t.yaml", "distributed_type: DEEPSPEED\nparallelism_config:\n  cp_size: 2\n",
     "t.yaml:3: parallelism_config.cp_size"),
    ("t.yaml", "step_scheduler: {}\nmodel: {config: {}}\ndistributed:\n  strategy: megatron_fsdp\n",
     "t.yaml:4: megatron_fsdp: Megatron-FSDP holds states"),
    ("t.yaml", "step_scheduler: {}\nmodel: {config: {}}\ndistributed:\n  ep_size: 8\n",
     "t.yaml:4: distributed.ep_size 8"),
    ("t.yaml", "trainer:\n  train_batch_size: 8\n  axis_resources: {mlp: data}\n",
     "t.yaml:3: trainer.axis_resources"),
    ("t.yaml", "trainer: {}\nmodel:\n  tensor_model_parallel_size: 1\n  expert_model_parallel_size: 2\n"
               "  num_moe_experts: 4\n  moe_expert_capacity_factor: 1.0\n", "t.yaml:6: a capacity factor of 1.0"),
    ("t.yaml", "trainer: {}\nmodel:\n  tensor_model_parallel_size: 1\n  moe_expert_ring_size: 2\n",
     "t.yaml:4: 'model.moe_expert_ring_size' is no known key"),
    ("t.yaml", "finetuning_type: full\nmixture_of_depths: convert\n",
     "t.yaml:2: mixture_of_depths: tokens skip layers"),
    ("t.yaml", "base_model: x\ndatasets: []\ntensor_parallel_size: 2\ndeepspeed: zero3_bf16.json\n",
     "t.yaml:3: tensor_parallel_size 2 under DeepSpeed"),
    ("t.toml", "[parallelism]\n[fault_tolerance]\nenable = true\nsemi_sync_method = 'diloco'\n",
     "t.toml:4: diloco: replica groups take steps of their own"),
    ("t.toml", "[parallelism]\ntensor_parallel_degree = 'two'\n", "t.toml:2: parallelism.tensor_parallel_degree"),
    ("t.toml", "[parallelism]\ntensor_parallel_degree = \n", "not TOML"),
    ("t.toml", "[model]\nname = 'flux'\n[parallelism]\ntensor_parallel_degree = 1\n", "a diffusion transformer"),
    ("t.toml", "[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = 'ZBWZeroBubble'\n",
     "ZBWZeroBubble: a schedule that no pipeline here runs"),
    ("t.toml", "[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = 'DualPipeV'\n"
               "pipeline_parallel_split_points = ['layers.2', 'layers.5']\n[model]\nname = 'llama3'\nflavor = '8B'\n",
     "split points ['layers.2', 'layers.5'] "),
    ("t.toml", "[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_split_points = ['layers." + "9" * 5000
               + "']\n[model]\nname = 'llama3'\nflavor = '8B'\n", "t.toml:3: split points ['layers.999"),
    ("t.sh", "#!/bin/bash\ntouch ran\ntorchrun pretrain_gpt.py --num-layers 2 --hidden-size 8 "
             "--tensor-model-parallel-size $1\n", "t.sh:3: --tensor-model-parallel-size is 1, which nothing sets"),
    ("t.py", "import x\nclass A:\n    base_model_tp_plan = {**__import__('os').environ}\n", "dict of words"),
    ("t.py", "import x\nclass A:\n    base_model_tp_plan = {\n", "not Python"),
    ("t.py", "import x\nclass A:\n    base_model_tp_plan = {'layers.*.mlp.experts.gate_up_proj': 'rowwise',"
     " 'layers.*.mlp.experts.down_proj': 'rowwise'}\n", "split along columns"),
    ("t.py", "import x\nclass A:\n    base_model_tp_plan = {'layers.*.mlp.router_gate': 'colwise'}\n",
     "neither gate, up nor down"),
    ("t.py", "import x\nclass A:\n    base_model_tp_plan = {'layers.*.self_attn.qk': 'colwise'}\n",
     "neither query, key, value nor output"),
    ("config_registry.py", "from torchtitan.trainer import Trainer\n\n\ndef llama3_8b() -> Trainer.Config:\n"
     "    return Trainer.Config(model_spec=model_registry('8B', converters=[LoRAConverter.Config(rank=8)]))\n",
     "config_registry.py:5: loraconverter: adapters train"),
    ("t.py", "import x\nclass A:\n    base_model_tp_plan = {'encoder.fc': 'rowwise'}\n", "no part of a layer"),
    ("empty.json", "", "is empty"),
])
def test_one_line_and_nothing_done(name: str, content: str | bytes, said: str, tmp_path: Path,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    for words in (["import", name, "-o", "out.toml"], ["prove", name]):
        got = run_placealg(*words)
        assert (got.code, got.out) == (2, ""), got
        assert said in got.err or (words[0] == "prove" and name == "t.toml" and "t.toml" in got.err)
        assert len(got.err.strip().splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_file_of_ten_megabytes_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "big.yaml").write_text("distributed_type: FSDP\n" + "# x\n" * 2_500_000, encoding="utf-8")
    got = run_placealg("import", "big.yaml")
    said = f"placealg: big.yaml: is larger than {MAX_BYTES} bytes, which no configuration is\n"
    assert (got.code, got.err) == (2, said)


@pytest.mark.parametrize(("words", "said"), [
    (["import"], "missing FILE"),
    (["import", "no.json"], "no.json: no such file"),
    (["import", "."], "is a folder"),
    (["import", "c.json", "--world-size", "none"], "--world-size: 'none' is not a whole number"),
    (["import", "c.json", "--nodes", "2"], "say both"),
    (["import", "c.json", "--as", "deepsped"], "did you mean 'deepspeed'"),
    (["import", "c.json", "--framework", "deepspeed=new"], "is no version"),
    (["import", "c.json", "--framework", "deepspeed"], "is not NAME=VALUE"),
    (["import", "c.json", "-o", "out.txt"], "ends in .toml"),
    (["import", "c.json", "-o", "nowhere/out.toml"], "its parent is no folder"),
    (["import", "c.json", "--model", "lama-3-8b"], "llama"),
    (["import", "c.json", "--strict", "--key", "zero_optimization.stage=3"], "--strict refuses"),
    (["import", "c.json", "--key", "zero_optimization.stage=4"], "expected 0, 1, 2 or 3"),
    (["cost", "zero3", "--precision", "fsdp3"], "did you mean 'fsdp2'"),
    (["import", "c.json", "--", "torchrun", "x.py"], "one of them"),
])
def test_bad_words_are_one_line(words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.json").write_text(GOOD, encoding="utf-8")
    got = run_placealg(*words)
    assert (got.code, got.out) == (2, "")
    assert said in got.err
    assert len(got.err.strip().splitlines()) == 1


def test_versions_choose_their_defaults(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"zero_optimization": {"stage": 0}, "bf16": {"enabled": true}}', encoding="utf-8")
    new, old, dated = (read(path, versions=v) for v in ({}, {"deepspeed": "0.16"}, {"deepspeed": "2025-01"}))
    assert new.expression == "dp"
    assert old.expression == dated.expression == "zero1"
    assert [r.strategy.option("optimizer", "clip") for r in (new, old)] == ["global_norm", "none"]
    assert [r.strategy.option("optimizer", "skip") for r in (new, old)] == ["overflow", "none"]


def test_a_reading_proves_as_its_file_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.json").write_text(GOOD, encoding="utf-8")
    assert run_placealg("import", "c.json", "--world-size", "8", "-o", "s.toml").code == 0
    one = run_placealg("prove", "c.json", "--world-size", "8", "--no-timing", "--format", "json")
    two = run_placealg("prove", "s.toml", "--no-timing", "--format", "json")
    assert one.code == two.code == 0
    assert one.out == two.out
    assert "c.json read as DeepSpeed JSON" in one.err
