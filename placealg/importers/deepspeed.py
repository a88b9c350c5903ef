"""DeepSpeed JSON: ZeRO stages, tiers, hpZ and MiCS, bytes, and the identity of the batch sizes."""

from __future__ import annotations

from fractions import Fraction

from placealg.importers.composed_strategy import STAGES
from placealg.importers.deepspeed_bytes import HF, ZERO, DeepSpeedBytes
from placealg.importers.document import Document
from placealg.importers.draft import Draft
from placealg.importers.key_log import Said
from placealg.importers.reading import Options, Reading

OPTIMIZERS = {"adam": "adam", "adamw": "adamw", "lamb": "lamb", "sgd": "sgd", "muon": "muon", "cpuadam": "adam",
              "fusedadam": "adam", "deepspeedcpuadam": "adam", "fusedlamb": "lamb"}
COMPRESSED = ("onebitadam", "onebitlamb", "zerooneadam")
TP_KEYS = ("tensor_parallel.autotp_size", "tensor_parallel.tp_size", "tensor_parallel.tp.tp_size")


def read_deepspeed(document: Document, options: Options) -> Reading:
    """The reading of a DeepSpeed configuration that stands alone."""
    draft = Draft("deepspeed", document, options)
    Engine(draft, draft.said, options.world_size).read()
    return draft.reading()


class Engine:
    """What the DeepSpeed engine makes of a configuration, beside a launcher that may say more.

    `world` is the number of devices where the launcher knows it; `precision` the launcher's mixed precision, "" where
    it leaves that to the file.
    """

    def __init__(self, draft: Draft, said: Said, world: int | None, precision: str = ""):
        self.draft, self.said, self.parts = draft, said, draft.parts
        self.world, self.precision = world, precision
        self.split = 1
        self.sequence: tuple[str, int] | None = None
        """The launcher's key and degree of sequence parallelism, where it says so."""
        self.outer = 1
        """The ranks that a trainer's own axes take from those of data."""
        self.trainer_steps: int | None = None
        """The accumulation that a trainer says, where the file says "auto" or nothing."""

    def read(self) -> None:
        """Read everything."""
        with self.draft.of(self.said):
            self._refused()
            stage = self.stage()
            self.batch_and_axes(stage)
            self.offload(stage)
            DeepSpeedBytes(self.draft, self.said, self.precision).read(stage)
            self.update()
            self.rest(stage)
            self.misplaced()

    def misplaced(self) -> None:
        """Keys of zero_optimization that stand beside it."""
        said = self.said
        for path, _ in said.document.leaves():
            key = ".".join(map(str, path))
            inner, form = f"{ZERO}.{key}", said.table
            if path and said.path(key) == path and key not in form.keys and not form.why_ignored(key) and (
                    inner in form.keys or form.why_ignored(inner)):
                said.leave(key, f"stands outside {ZERO}, where DeepSpeed does not read it")

    def _refused(self) -> None:
        said = self.said
        for key, what in (("elasticity.enabled", "elasticity: batch and device counts follow the nodes at hand"),
                          ("autotuning.enabled", "autotuning: a search space, not one strategy"),
                          ("amp.enabled", "Apex AMP keeps fp32 weights beside casts, which no [types] says"),
                          ("progressive_layer_drop.enabled", "progressive layer drop skips layers at random: another "
                           "model in each step")):
            if not isinstance(said.raw(f"{ZERO}.stage"), list) and said.flag(key):
                raise said.refuse(key, what)
        for key, what in ((f"{ZERO}.zeropp_loco_param", "LoCo carries an error to the next step"),
                          (f"{ZERO}.zenflow", "ZenFlow applies some gradients a step later")):
            if said.raw(key):
                raise said.refuse(key, what)
        if said.flag(f"{ZERO}.zero_quantized_nontrainable_weights"):
            raise said.refuse(f"{ZERO}.zero_quantized_nontrainable_weights", "frozen weights rest quantised")
        if said.value("gradient_allreduce_op") == "sum":
            raise said.refuse("gradient_allreduce_op", "gradients are summed over ranks where the loss means a mean: "
                              "what makes up for that stands in the trainer")
        training = said.raw("compression_training")
        for name, part in (training.items() if isinstance(training, dict) else ()):
            shared = part.get("shared_parameters") if isinstance(part, dict) else None
            if isinstance(part, dict) and (part.get("enabled") or (isinstance(shared, dict) and shared.get("enabled"))):
                raise said.refuse(f"compression_training.{name}", f"{name}: the weights are compressed while training")

    def stage(self) -> int:
        """The ZeRO stage."""
        said, key = self.said, f"{ZERO}.stage"
        whole = said.raw(ZERO)
        if isinstance(whole, bool):
            said.read(ZERO, f"{STAGES[int(whole)]}: true is stage 1")
            return int(whole)
        if whole is not None and not isinstance(whole, dict):
            raise said.refuse(ZERO, f"{ZERO} is {whole!r}: expected a table, or true or false")
        value = said.value(key)
        if isinstance(value, list):
            raise said.refuse(key, f"{key} is a list: an autotuning search space, not one strategy")
        if value == "auto":
            raise said.refuse(key, f"{key} is \"auto\": who fills it in decides the placement", f"--key {key}=2")
        stage = said.whole(key, value, 0)
        if stage is None or stage > 3:
            raise said.refuse(key, f"{key} is {value}: expected 0, 1, 2 or 3")
        return stage

    def batch_and_axes(self, stage: int) -> None:
        """The axes with their sizes, from the batch identity and the degrees that the file gives."""
        said = self.said
        tp_key = next((k for k in TP_KEYS if said.has(k)), TP_KEYS[0])
        tp = said.number(tp_key, 0) or 1
        if tp > 1:
            for key in ("tensor_parallel.partition_config", "tensor_parallel.preset_model"):
                if said.raw(key):
                    raise said.refuse(key, f"{key}: a placement of its own, which is not read")
        sp = self.sequence[1] if self.sequence else said.number("sequence_parallel_size") or 1
        self.split = tp * sp * self.outer
        micro = said.number("train_micro_batch_size_per_gpu")
        train = said.number("train_batch_size")
        steps = said.number("gradient_accumulation_steps")
        data = self.fix_world(micro, train, steps)
        if data is None and self.world is None:
            said.unsaid("world_size", "the launcher decides: the data-parallel axis stays symbolic", "--world-size")
        if steps is None and self.trainer_steps is not None:
            if said.has("gradient_accumulation_steps"):
                said.inactive("gradient_accumulation_steps", "the trainer's")
        else:
            steps = self.steps(micro, train, steps, data)
            why = self.open_steps(micro, train) if steps is None else ""
            self.draft.accumulation(steps, "gradient_accumulation_steps", why)
        if micro is not None:
            self.draft.size("b", "train_micro_batch_size_per_gpu", "sequences of a microbatch")
        elif said.has("train_micro_batch_size_per_gpu") and self.trainer_steps is not None:
            said.leave("train_micro_batch_size_per_gpu", "the trainer's")
        elif said.has("train_micro_batch_size_per_gpu"):
            said.unsaid("train_micro_batch_size_per_gpu", "the trainer decides: b stays symbolic", "--set b=1")
        if said.has("train_batch_size") and train is None and self.trainer_steps is not None:
            said.leave("train_batch_size", "the trainer's")
        elif said.has("train_batch_size") and train is None:
            said.unsaid("train_batch_size", "the trainer decides; it follows from the others")
        self.axes(stage, data, sp, tp, tp_key)

    def fix_world(self, micro: int | None, train: int | None, steps: int | None) -> int | None:
        """The ranks of data: of the world, and of train = micro x accumulation x ranks."""
        said = self.said
        data = None
        if self.world is not None:
            data = self.draft.divided(self.world, self.split, "tensor and sequence parallelism")
        if micro and train and steps:
            if train % (micro * steps):
                raise said.refuse("train_batch_size", f"train_batch_size {train} is not micro {micro} x accumulation "
                                  f"{steps} x a whole number of ranks")
            found = train // (micro * steps)
            if data is not None and data != found:
                raise said.refuse("train_batch_size", f"train_batch_size {train} = micro {micro} x accumulation "
                                  f"{steps} x {found} ranks, and the launch has {data}")
            said.read("train_batch_size", f"{train} = {micro} x {steps} x ranks: {found} ranks of data")
            return found
        return data

    def steps(self, micro: int | None, train: int | None, steps: int | None, data: int | None) -> int | None:
        """The accumulation, said or from the batch identity."""
        said = self.said
        if steps is not None:
            if train and not micro:
                said.read("train_batch_size", f"b = {train}/({steps} x ranks)")
            return steps
        if train and micro and data:
            if train % (micro * data):
                raise said.refuse("train_batch_size", f"train_batch_size {train} is not a multiple of micro {micro} x "
                                  f"{data} ranks")
            said.read("train_batch_size", f"[schedule] microbatches = {train}/({micro} x {data})")
            return train // (micro * data)
        if train and not micro and not said.has("train_micro_batch_size_per_gpu") and \
                not said.has("gradient_accumulation_steps"):
            said.read("train_batch_size", "accumulation is 1 where train_batch_size stands alone (config.py:978)")
            return 1
        if micro and not train and not said.has("gradient_accumulation_steps") and not said.has("train_batch_size"):
            return 1
        return None

    def open_steps(self, micro: int | None, train: int | None) -> str:
        """Why the accumulation is open."""
        if micro and train:
            self.said.read("train_batch_size", f"m = {train}/({micro} x dp)")
            return f"m = {train}/({micro} x dp), and dp is open"
        return "the trainer decides"

    def axes(self, stage: int, data: int | None, sp: int, tp: int, tp_key: str) -> None:
        """The factors of data, sequence and tensor parallelism."""
        said, parts, key = self.said, self.parts, f"{ZERO}.stage"
        group = said.number(f"{ZERO}.zero_hpz_partition_size", 0) or 1
        mics = said.whole(f"{ZERO}.mics_shard_size", said.value(f"{ZERO}.mics_shard_size"), -1) or -1
        if stage < 3:
            for name in ("zero_hpz_partition_size", "mics_shard_size", "zero_quantized_weights",
                         "zero_quantized_gradients"):
                said.inactive(f"{ZERO}.{name}", "of stage 3 alone")
            group, mics = 1, -1
        if mics > 0:
            self.hybrid("mics", f"{ZERO}.mics_shard_size", mics, data)
        elif group > 1:
            self.hybrid("zeropp", f"{ZERO}.zero_hpz_partition_size", group, data)
        else:
            if stage == 0 and self.bf16() and said.value("stage 0 in bf16") == "zero1":
                stage = 1
                said.read("stage 0 in bf16", "zero1: BF16_Optimizer shards master and moments")
            parts.axis(STAGES[stage], data)
            for name in ("zero_hpz_partition_size", "mics_shard_size"):
                said.inactive(f"{ZERO}.{name}", "no partition of ranks")
        said.read(key, f"{STAGES[stage]} over the ranks of data" if mics < 1 and group < 2 else
                  "parameters, optimizer and gradients sharded")
        if sp > 1:
            parts.axis("cp_ulysses", sp=sp)
            if not self.sequence:
                said.read("sequence_parallel_size", f"cp_ulysses over sp = {sp}; the states over dp and sp together")
        else:
            said.inactive("sequence_parallel_size", "1: no sequence parallelism")
        if tp > 1:
            parts.axis("tp", tp)
            parts.say("dims", "tp", ["loss.none", "embedding.none", "heads", "ffn", "vocab"])
            said.read(tp_key, f"tp over {tp} ranks: heads, ffn and the logits' vocab; embedding and loss whole")
        else:
            said.inactive(tp_key, "no tensor parallelism")

    def bf16(self) -> bool:
        """Whether the file turns bf16 on."""
        return any(self.said.raw(f"{name}.enabled") is True for name in ("bf16", "bfloat16"))

    def hybrid(self, name: str, key: str, group: int, data: int | None) -> None:
        """A hybrid of shards within `group` ranks and replicas, or second shards, across."""
        if data is not None and data % group:
            raise self.said.refuse(key, f"{data} ranks of data are not a multiple of {key} = {group}")
        self.parts.axis(name, dp_replicate=None if data is None else data // group, dp_shard=group)
        self.said.read(key, f"{name} with dp_shard = {group}")

    def share(self, key: str, ratio: float) -> None:
        """The share of the optimizer state that rests on the host: DeepSpeed takes whole sub-groups, rounded down."""
        if ratio <= 0:
            raise self.said.refuse(key, f"ratio = {ratio}: no sub-group's optimizer state is on the host; leave "
                                        "offload_optimizer out")
        self.parts.say("optimizer", "offload_share", str(Fraction(str(ratio))))
        self.said.approximated(key, f"[optimizer] offload_share = \"{Fraction(str(ratio))}\" of the layers, where "
                                    "DeepSpeed takes sub-groups of sub_group_size elements, rounded down")

    def offload(self, stage: int) -> None:
        """The tiers of optimizer and parameters."""
        said, parts = self.said, self.parts
        device, key = self.device("offload_optimizer", "cpu_offload")
        if device != "none" and stage == 0:
            said.inactive(key, "stage 0 does not offload")
        elif device != "none":
            ratio = said.value(f"{ZERO}.offload_optimizer.ratio")
            if stage == 3 and isinstance(ratio, (int, float)) and not isinstance(ratio, bool) and ratio < 1:
                self.share(f"{ZERO}.offload_optimizer.ratio", ratio)
            parts.modifier("offload_optimizer")
            if device == "nvme" and stage == 3:
                parts.say("optimizer", "tier", "nvme")
            said.read(key, f"[optimizer] tier = \"{'nvme' if device == 'nvme' and stage == 3 else 'host'}\"" + (
                ": stages 1 and 2 take nvme for cpu" if device == "nvme" and stage < 3 else ""))
        else:
            said.inactive(key, "nothing is offloaded")
        said.inactive(f"{ZERO}.offload_optimizer.ratio", "all of the optimizer state")
        device, key = self.device("offload_param", "cpu_offload_param")
        if device != "none" and stage == 3:
            parts.modifier("offload_parameters")
            if device == "nvme":
                parts.say("parameters", "tier", "nvme")
            said.read(key, f"[parameters] tier = \"{'nvme' if device == 'nvme' else 'host'}\"")
        else:
            said.inactive(key, "nothing is offloaded" if device == "none" else "of stage 3 alone")

    def device(self, name: str, deprecated: str) -> tuple[str, str]:
        """(device, the key that says so) of an offload."""
        said, key = self.said, f"{ZERO}.{name}.device"
        table = said.raw(f"{ZERO}.{name}")
        if table is not None and not isinstance(table, dict):
            raise said.refuse(f"{ZERO}.{name}", f"{ZERO}.{name} is {table!r}: expected a table with device")
        old = f"{ZERO}.{deprecated}"
        if said.flag(old):
            if said.has(key) and said.raw(key) != "cpu":
                raise said.refuse(old, f"{deprecated} says cpu, {name}.device {said.raw(key)}")
            return "cpu", old
        said.inactive(old, "false: nothing is offloaded")
        value = said.value(key)
        if value == "auto":
            said.unsaid(key, "the launcher decides; read as none", "--key")
            return "none", key
        return said.choice(key, value, ("none", "cpu", "nvme")), key

    def update(self) -> None:
        """Optimizer, clipping and loss."""
        said, draft = self.said, self.draft
        kind = said.raw("optimizer.type")
        if kind is None and self.trainer_steps is not None:
            said.follows("optimizer", "the trainer's")
        elif kind is None:
            said.unsaid("optimizer.type", "the trainer brings its own: read as AdamW", "--key")
        elif str(kind).lower() in COMPRESSED:
            raise said.refuse("optimizer.type", f"{kind}: what it reduces is compressed, with an error kept for later")
        elif kind == "auto":
            said.unsaid("optimizer.type", "the trainer decides: read as AdamW")
        else:
            draft.optimizer("optimizer.type", str(kind), OPTIMIZERS)
        clip = said.raw("gradient_clipping")
        if clip == "auto" and self.trainer_steps is not None:
            said.read("gradient_clipping", "the trainer's max_grad_norm")
        elif clip == "auto":
            said.unsaid("gradient_clipping", "the trainer decides (max_grad_norm, 1.0 in HF): clipped by the global "
                                             "norm",
                        "--key gradient_clipping=1.0")
        else:
            draft.clip("gradient_clipping", said.value("gradient_clipping"))
        if draft.options.trainer == "hf":
            draft.token_mean()
            said.follows("loss", "[loss] preset = \"token_mean\": HF Trainer passes the mean over all tokens of the "
                                 "step")
        elif draft.options.trainer == "" and self.trainer_steps is None:
            said.unsaid("loss", "the engine divides by the accumulation, and ranks are averaged: mean_of_means, "
                                "unless "
                        "the trainer passes another", HF)

    def leaves(self) -> None:
        """The units that stage 3 gathers: leaf modules."""
        said = self.said
        axes = [a for a, mode in self.parts.strategy("").state("parameters").modes.items() if str(mode) == "S*"]
        held = {a for name, _ in self.parts.factors for a in axes if name == "zeropp" and a == "dp_replicate"}
        self.parts.say("schedule", "lifetime", {a: "leaf" for a in axes if a not in held})
        said.follows("units", "[schedule] lifetime = \"leaf\": the engine's hooks gather and free the parameters of "
                              "one module that holds some, at a time")
        said.approximated("prefetch", "what the engine gathers ahead of its use, up to prefetch_bucket_size elements, "
                                      "or keeps for its next one, up to max_live_parameters, is not counted")

    def rest(self, stage: int) -> None:
        """What stands beside the placement."""
        said = self.said
        names = ("stage3_param_persistence_threshold", "param_persistence_threshold")
        key = f"{ZERO}.{next((n for n in names if said.has(f'{ZERO}.{n}')), names[0])}"
        if stage == 3:
            value = said.raw(key)
            if value is None:
                value = said.default(f"{ZERO}.{names[0]}")
            if value != 0:
                said.approximated(key, "parameters with fewer elements (norms, biases) stay gathered on every rank; "
                                       "here "
                                  "they are sharded: a little less memory and a little more traffic", value)
            else:
                said.read(key, "every parameter is sharded")
            self.leaves()
        else:
            said.inactive(key, "of stage 3 alone")
        for name in ("reduce_scatter", "allgather_partitions"):
            if said.flag(f"{ZERO}.{name}") or stage in (0, 3):
                said.inactive(f"{ZERO}.{name}", "as placealg derives it" if stage in (1, 2) else "of stages 1 and 2")
            elif name == "reduce_scatter":
                self.parts.all_reduce("dp")
                said.read(f"{ZERO}.{name}", "[schedule] reduction: gradients are all_reduced over dp, and sliced")
            else:
                said.approximated(f"{ZERO}.{name}", "parameters are broadcast owner by owner; an all_gather is costed")
        if said.flag("activation_checkpointing.cpu_checkpointing"):
            said.approximated("activation_checkpointing.cpu_checkpointing", "where the model checkpoints, what it "
                                                                            "keeps "
                              "rests on the host; here activations are on the device")
        if self.trainer_steps is None:
            said.unsaid("recompute", "the model's code calls deepspeed.checkpointing or not: no recompute is read")
        if said.flag("curriculum_learning.enabled"):
            said.approximated("curriculum_learning.enabled", "sequences grow while training: figures are for one "
                                                             "length")
        if said.flag("torch_autocast.enabled"):
            said.approximated("torch_autocast.enabled", "ops run in their autocast types; activations are costed at "
                                                        "act"
                              )
        if said.flag("sparse_gradients"):
            said.approximated("sparse_gradients", "an embedding's gradient travels as rows; whole ones are costed")
        for key in ("elasticity.enabled", "autotuning.enabled", "amp.enabled", "progressive_layer_drop.enabled",
                    "curriculum_learning.enabled", "sparse_gradients", "torch_autocast.enabled",
                    "gradient_allreduce_op",
                    f"{ZERO}.zero_quantized_nontrainable_weights", f"{ZERO}.zeropp_loco_param", f"{ZERO}.zenflow",
                    "activation_checkpointing.cpu_checkpointing", "fp16.auto_cast", "bf16.check_grad_overflow",
                    "bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states",
                    "fp16.fp16_master_weights_and_grads", "tensor_parallel.partition_config",
                    "tensor_parallel.preset_model", f"{ZERO}.reduce_bucket_size", f"{ZERO}.offload_optimizer",
                    f"{ZERO}.offload_param"):
            if not isinstance(said.raw(key), dict):
                said.leave(key, "off, or of no bearing here")
