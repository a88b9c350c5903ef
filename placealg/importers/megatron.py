"""Megatron-LM by its flags: degrees, the distributed optimizer and its kin, batches, recompute."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from placealg.importers.composed_strategy import STAGES
from placealg.importers.document import written
from placealg.importers.draft import Draft
from placealg.importers.key_log import Said
from placealg.importers.megatron_adapters import read_megatron_adapters
from placealg.importers.megatron_bytes import read_bytes, read_scales
from placealg.importers.megatron_kernels import read_kernels
from placealg.importers.megatron_model import read_model, read_predictions
from placealg.importers.megatron_recompute import read_offload, read_recompute
from placealg.importers.megatron_stages import ZERO_BUBBLE, read_pipeline
from placealg.importers.tables import default_of, table
from placealg.importers.token_attributes import DOCUMENTS, POSITIONS, WEIGHTS, Attribute, read_tokens

OPTIMIZERS = {"adam": "adam", "adamw": "adamw", "sgd": "sgd", "muon": "muon", "dist_muon": "muon", "lamb": "lamb"}
SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
OTHER_SCHEDULES = ("zero-bubble", "dualpipe", "combined-1f1b", "enable-zb", "enable-zero-bubble",
                   "zero-bubble-v-schedule", "enable-1f1b-v",
                   "interleave-group-size", "num-seq-splits", "enable-vocab-parallel")

TOKENS: dict[str, Attribute] = {"reset-position-ids": POSITIONS, "reset-attention-mask": DOCUMENTS,
                                "eod-mask-loss": WEIGHTS}
"""Flag -> what it says of tokens."""


class Megatron:
    """What Megatron-LM makes of flags; `said` asks for them by their names with dashes.

    `world` is the number of devices where a launcher says it; `expert_tensor` the front end's default of
    expert-tensor-parallel-size, None for tp.
    """

    def __init__(self, draft: Draft, said: Said, world: int | None, expert_tensor: int | None = None):
        self.draft, self.said, self.parts = draft, said, draft.parts
        self.world = world
        self.expert_default = expert_tensor
        self.stage = 0

    def read(self) -> None:
        """Read everything."""
        with self.draft.of(self.said):
            self._read()

    def _read(self) -> None:
        self.refused()
        tp, pp, cp = self.degree("tensor-model-parallel-size", "model-parallel-size"), self.pipeline(), \
            self.degree("context-parallel-size")
        sp = self.degree("ds-sequence-parallel-size")
        ep, axis_ep = self.experts(tp)
        data = self.data(tp * pp * cp * sp, axis_ep)
        self.place_data(data, axis_ep)
        self.place_context(cp, sp)
        self.place_tensor(tp, ep, axis_ep)
        if axis_ep > 1:
            self.parts.axis("ep", axis_ep)
        layers = read_pipeline(self.draft, self.said, pp)
        self.recompute(layers, pp)
        read_bytes(self.draft, self.said, self.stage, self.fsdp)
        self.batch(None if data is None else data * axis_ep)
        self.update()
        read_model(self.draft, self.said, tp)
        read_predictions(self.draft, self.said)
        read_kernels(self.draft, self.said)
        self.adapters()
        read_scales(self.draft, self.said)

    @property
    def fsdp(self) -> bool:
        """Whether Megatron-FSDP holds the states."""
        return self.said.flag("use-megatron-fsdp") or self.said.flag("use-custom-fsdp")

    def degree(self, *names: str) -> int:
        """A degree, by the first of its names that is said."""
        said = self.said
        name = next((n for n in names if said.has(n)), names[0])
        return said.whole(name, said.value(name)) or 1

    def pipeline(self) -> int:
        """The pipeline's degree."""
        if self.said.flag("no-pipeline-parallel"):
            self.said.read("no-pipeline-parallel", "no pipeline")
            self.said.leave("pipeline-model-parallel-size", "no-pipeline-parallel is on")
            return 1
        self.said.leave("no-pipeline-parallel", "off")
        return self.degree("pipeline-model-parallel-size")

    def refused(self) -> None:
        """What no strategy says."""
        said = self.said
        for name in ("train-type", "tuner-type"):
            if said.has(name) and said.raw(name) not in ("full", "lora"):
                raise said.refuse(name, f"{name} {said.raw(name)}: the base is frozen otherwise than by LoRA")
            if said.raw(name) != "lora":
                said.leave(name, "every parameter is trained")
        if said.has("freeze-llm") and said.truth("freeze-llm", said.raw("freeze-llm")):
            raise said.refuse("freeze-llm", "part of the model is frozen")
        for name in ("load-yaml", "yaml-cfg"):
            if said.has(name):
                raise said.refuse(name, f"{said.raw(name)} decides, another file", "give that file instead")
        if said.flag("fine-grained-activation-offloading"):
            raise said.refuse("fine-grained-activation-offloading", "inputs of single modules rest on the host; of "
                              "regions and layers all activations do")
        if said.flag("fp4-param-gather"):
            raise said.refuse("fp4-param-gather", "weights rest in 4 bits beside others")
        for key in [str(k) for k in said.document.data] if isinstance(said.document.data, dict) else []:
            word = key.lstrip("-").replace("_", "-")
            other = any(word.startswith(name) for name in OTHER_SCHEDULES) and word not in ZERO_BUBBLE
            if other and said.document.data[key] not in (False, "0"):
                raise said.refuse(word, f"{word}: another schedule than the pipelines here")
        self.capacity()

    def adapters(self) -> None:
        """LoRA of ms-swift."""
        said = self.said
        name = next((n for n in ("train-type", "tuner-type") if said.raw(n) == "lora"), "")
        if not name:
            return
        for key in ("modules-to-save", "lora-target-parameters", "target-regex", "lora-bias", "vit-gradient-"
                    "checkpointing", "adapter-load", "quant-method"):
            if said.has(key) and said.raw(key) not in ("none", "None", False, "false"):
                raise said.refuse(key, f"{key} {said.raw(key)} beside adapters, which is not read")
        found = said.raw("target-modules")
        words = found if isinstance(found, list) else str(found or "all-linear").split()
        said.read(name, "[adapters]: the base is frozen")
        read_megatron_adapters(self.draft, "lora-rank", said.number("lora-rank") or 8, "target-modules",
                               [str(w) for w in words])
        if said.has("lora-dropout"):
            said.approximated("lora-dropout", "dropout of what enters an adapter is left out")

    def capacity(self) -> None:
        """Tokens that a capacity drops."""
        said = self.said
        if said.has("moe-expert-capacity-factor"):
            raise said.refuse("moe-expert-capacity-factor", f"a capacity factor of "
                              f"{said.raw('moe-expert-capacity-factor')}: tokens beyond it are dropped, and proofs "
                              "are "
                              "of routing that drops none")
        of_deepspeed = said.has("moe-train-capacity-factor") or said.has("moe-expert-parallel-size")
        routed = said.raw("num-experts") not in (None, "1", 1)
        if of_deepspeed and routed and not said.flag("disable-moe-token-dropping"):
            name = "moe-train-capacity-factor" if said.has("moe-train-capacity-factor") else "num-experts"
            raise said.refuse(name, f"experts with a capacity factor of {said.value('moe-train-capacity-factor')}: "
                              "tokens beyond it are dropped", "--disable-moe-token-dropping drops none")
        for name in ("moe-token-drop-policy", "moe-pad-expert-input-to-capacity", "moe-train-capacity-factor",
                     "disable-moe-token-dropping"):
            said.leave(name, "no capacity")

    def experts(self, tp: int) -> tuple[int, int]:
        """(expert parallelism, the ranks that it takes from those of data)."""
        said = self.said
        name = "moe-expert-parallel-size" if said.has("moe-expert-parallel-size") else "expert-model-parallel-size"
        ep = said.whole(name, said.raw(name)) or 1
        routed = ep > 1 if said.raw("num-experts") is None else said.raw("num-experts") not in ("1", 1)
        key = "expert-tensor-parallel-size"
        if ep == 1 or not routed:
            said.leave(name, "1: no expert parallelism" if ep == 1 else "no experts")
            over = said.number(key) or (self.expert_default or tp)
            if routed and over == 1 and tp > 1:
                raise said.refuse(key if said.has(key) else "num-experts", f"experts whole beside tp = {tp}: each is "
                                  "on every rank of tp, which no axis says")
            said.leave(key, "no expert parallelism")
            return 1, 1
        over = said.number(key) or (self.expert_default or tp)
        if over not in (1, tp):
            raise said.refuse(key, f"expert-tensor-parallel-size {over} is neither 1 nor tp = {tp}")
        said.read(name, f"ep: experts over {ep} ranks")
        if over == tp:
            said.leave(key, "experts' ffn is split over tp")
            return ep, ep
        if ep % tp:
            raise said.refuse(key if said.has(key) else name, f"experts over {ep} ranks, part of tp = {tp}: the two "
                                                              "meet in no common refinement that is read")
        said.read(key, f"experts split over tp, too: ep = {ep // tp} of the ranks of data")
        return ep, ep // tp

    def data(self, split: int, axis_ep: int) -> int | None:
        """The ranks of data beside those of experts."""
        said = self.said
        world = said.number("world-size") or self.world
        size = said.number("data-parallel-size")
        if world is None and size:
            world = size * split
        if said.has("world-size"):
            said.read("world-size", f"{world} devices")
        said.leave("data-parallel-size", "follows from the other degrees")
        data = self.draft.divided(self.draft.world(world, "world-size"), split, "the model-parallel degrees")
        if data is not None and data % axis_ep:
            raise said.refuse("expert-model-parallel-size", f"{data} ranks of data are not a multiple of the "
                                                            f"{axis_ep} of expert parallelism")
        return None if data is None else data // axis_ep

    def place_data(self, data: int | None, axis_ep: int) -> None:
        """The data axes, by what holds the states."""
        said, parts = self.said, self.parts
        instances = said.whole("num-distributed-optimizer-instances",
                               said.value("num-distributed-optimizer-instances")) or 1
        name, key, why = self.holder()
        if instances > 1:
            if data is not None and data % instances:
                raise said.refuse("num-distributed-optimizer-instances", f"{data} ranks of data are not a multiple")
            outer = said.value("outer-dp-sharding-strategy")
            parts.replicated(self.stage, instances, None if data is None else data // instances, outer == "optim")
            if outer == "optim":
                said.read("outer-dp-sharding-strategy", "[states] optimizer over both axes")
            else:
                said.leave("outer-dp-sharding-strategy", "no_shard: replicas")
            said.read("num-distributed-optimizer-instances", f"{instances} replicas of the shards")
        else:
            parts.axis(name, data)
            for other in ("num-distributed-optimizer-instances", "outer-dp-sharding-strategy"):
                said.leave(other, "one instance")
        said.read(key, why, None)

    def holder(self) -> tuple[str, str, str]:
        """(catalogue name, the flag, why) of who holds the states; sets the stage."""
        said = self.said
        if self.fsdp:
            how = "data-parallel-sharding-strategy"
            self.stage = SHARDING[said.choice(how, said.value(how), SHARDING)]
            said.read(how, STAGES[self.stage])
            said.leave("use-distributed-optimizer", "Megatron-FSDP brings its own")
            key = "use-megatron-fsdp" if said.has("use-megatron-fsdp") else "use-custom-fsdp"
            return STAGES[self.stage], key, "Megatron-FSDP: gradients are reduced in every microbatch"
        said.leave("data-parallel-sharding-strategy", "of Megatron-FSDP alone")
        if said.flag("use-torch-fsdp2"):
            self.stage = 3
            words = ("torch-fsdp2-reshard-after-forward", "torch-fsdp2-no-reshard-after-forward")
            keep = not said.flag(words[0]) or said.flag(words[1])
            for key in words:
                if said.has(key):
                    said.read(key, "kept after forward" if keep else "gathered for each use")
            return ("fsdp_no_reshard" if keep else "zero3"), "use-torch-fsdp2", "FSDP2 of PyTorch"
        if said.has("zero-stage"):
            self.stage = min(3, said.whole("zero-stage", said.raw("zero-stage"), 0) or self._whole_stage())
            said.leave("use-distributed-optimizer", "DeepSpeed holds the states")
            return STAGES[self.stage], "zero-stage", f"{STAGES[self.stage]} of DeepSpeed"
        for key in ("use-distributed-optimizer", "overlapped-distributed-optimizer"):
            if said.flag(key):
                self.stage = 1
                return "zero1", key, "zero1: the optimizer over ranks of data and context"
        return "dp", "use-distributed-optimizer", "dp: everything is on every rank of data"

    def _whole_stage(self) -> int:
        """The stage that DeepSpeed makes of 0: in bf16 it sharded the optimizer up to a release."""
        row = table("deepspeed").keys["stage 0 in bf16"]
        asked = self.said.options.versions.get("deepspeed", "")
        if not self.said.flag("bf16"):
            return 0
        if not asked:
            self.said.missing("zero-stage 0 in bf16", f"it is zero1 up to DeepSpeed {row.moved[0].until}, and dp from "
                              f"{row.moved[0].since} on, which is read", f"--framework deepspeed={row.moved[0].until}")
        return STAGES.index(str(default_of(row, asked)[0]))

    def place_context(self, cp: int, sp: int) -> None:
        """Context parallelism by how keys and values travel, and Ulysses of DeepSpeed."""
        said, parts = self.said, self.parts
        if cp == 1:
            for key in ("context-parallel-size", "cp-comm-type", "hierarchical-context-parallel-sizes"):
                said.leave(key, "no context parallelism")
        else:
            self.context_axes(cp)
        if sp > 1:
            parts.axis("cp_ulysses", sp=sp)
            said.read("ds-sequence-parallel-size", f"cp_ulysses over sp = {sp}")
        else:
            said.leave("ds-sequence-parallel-size", "1: no sequence parallelism of DeepSpeed")

    def context_axes(self, cp: int) -> None:
        """The axes of context parallelism."""
        said, parts = self.said, self.parts
        how = said.value("cp-comm-type")
        words = [str(word) for word in how] if isinstance(how, list) else str(how).split()
        if len(words) != 1:
            raise said.refuse("cp-comm-type", f"cp-comm-type {' '.join(words)}: one way per layer, which no axis says"
                              if words else "cp-comm-type names no way")
        names = {"p2p": "cp_ring", "a2a": "cp_ulysses", "all_gather": "cp", "allgather": "cp"}
        if words[0] == "a2a+p2p":
            sizes = said.raw("hierarchical-context-parallel-sizes")
            levels = [level for n in (sizes if isinstance(sizes, list) else str(sizes or "").split())
                      if (level := written(n, 9)) is not None]
            if len(levels) != 2 or levels[0] * levels[1] != cp:
                raise said.refuse("hierarchical-context-parallel-sizes", f"{sizes}: expected two sizes of product "
                                                                         f"{cp}")
            parts.axis("cp_ulysses", cpu=levels[0])
            parts.axis("cp_ring", cpr=levels[1])
            said.read("hierarchical-context-parallel-sizes", f"cpu = {levels[0]} inside, cpr = {levels[1]} across")
        else:
            name = names[said.choice("cp-comm-type", words[0], names)]
            parts.axis(name, cp=cp)
            said.leave("hierarchical-context-parallel-sizes", "of a2a+p2p alone")
        said.read("context-parallel-size", f"context parallelism over {cp} ranks")
        said.read("cp-comm-type", "how keys and values travel")

    def place_tensor(self, tp: int, ep: int, axis_ep: int) -> None:
        """Tensor parallelism, with or without its sequence parallelism."""
        said, parts = self.said, self.parts
        key = "tensor-model-parallel-size" if not said.has("model-parallel-size") else "model-parallel-size"
        if tp == 1:
            said.leave(key, "1: no tensor parallelism")
            said.leave("sequence-parallel", "dropped where tp is 1")
            return
        name = "tp_sp" if said.flag("sequence-parallel") else "tp"
        parts.axis(name, tp)
        if ep > axis_ep:
            parts.say("dims", "tp", ["loss.none", "expert.expert", "heads", "ffn", "vocab",
                                     *(["seq"] if name == "tp_sp" else [])])
        said.read(key, f"{name} over {tp} ranks")
        said.read("sequence-parallel", f"{name}")

    def recompute(self, layers: int | None, pp: int) -> None:
        """What is computed again in backward."""
        read_recompute(self.draft, self.said, layers, pp)

    def batch(self, data: int | None) -> None:
        """b, s and the microbatches."""
        said, draft = self.said, self.draft
        key = "batch-size" if said.has("batch-size") else "micro-batch-size"
        micro = said.number(key)
        if micro is not None:
            draft.size("b", key, "sequences of a microbatch", micro)
        if said.has("seq-length"):
            draft.size("s", "seq-length", "tokens of a sequence")
        elif said.has("max-length") and said.number("max-length"):
            draft.size("s", "max-length", "longest sequence")
        else:
            said.unsaid("seq-length", "another file or the data decides: s stays symbolic", "--set s=N")
        if (count := said.number("num-micro-batches")) is not None:
            draft.accumulation(count, "num-micro-batches")
            return
        growing = next((k for k in ("rampup-batch-size", "step-batch-size-schedule") if said.raw(k)), "")
        total = said.number("global-batch-size")
        if said.flag("use-dynamic-batch-size"):
            said.unsaid("use-dynamic-batch-size", "microbatches are packed by tokens: they stay m", "--microbatches")
            said.leave("global-batch-size", "packed by tokens")
            return
        if growing:
            said.unsaid(growing, "the batch grows while training: microbatches stay m", "--microbatches")
            draft.microbatches = draft.options.microbatches
            if draft.microbatches:
                self.parts.say("schedule", "microbatches", draft.microbatches)
            said.leave("global-batch-size", "what the batch grows to")
            return
        steps, why = None, "the ranks of data are open"
        if total is None:
            steps = 1 if micro else None
            why = "neither micro nor global batch size is said"
        elif micro and data is not None:
            if total % (micro * data):
                raise said.refuse("global-batch-size", f"global-batch-size {total} is not a multiple of {micro} x "
                                                       f"{data} ranks of data")
            steps = total // (micro * data)
        elif micro:
            why = f"m = {total}/({micro} x dp), and dp is open"
        draft.accumulation(steps, "global-batch-size", why)

    def update(self) -> None:
        """Offload, clipping, loss, optimizer, and what is left out."""
        said, draft = self.said, self.draft
        read_offload(draft, said)
        key = "cpu-optimizer" if said.flag("cpu-optimizer") else "optimizer-cpu-offload"
        if said.flag(key):
            fraction = said.amount("optimizer-offload-fraction")
            if not 0 < fraction <= 1:
                raise said.refuse("optimizer-offload-fraction", f"{fraction}: a fraction is above 0 and at most 1")
            if fraction < 1:
                share = Fraction(str(fraction))
                self.parts.say("optimizer", "offload_share", str(share))
                said.approximated("optimizer-offload-fraction", f"[optimizer] offload_share = \"{share}\" of the "
                                  "layers, where Megatron-LM takes parameters one after the other")
            self.parts.modifier("offload_optimizer")
            said.read(key, "[optimizer] tier = \"host\"")
        else:
            said.leave(key, "nothing is offloaded")
        said.leave("optimizer-offload-fraction", "all of it, or nothing")
        draft.clip("clip-grad", _float(said.value("clip-grad")))
        draft.optimizer("optimizer", str(said.value("optimizer")), OPTIMIZERS)
        if said.flag("calculate-per-token-loss"):
            draft.token_mean()
            said.read("calculate-per-token-loss", "[loss] preset = \"token_mean\"")
        else:
            said.read("calculate-per-token-loss", "[loss] mean_of_means: the mean of each microbatch, averaged")
        for key, attribute in TOKENS.items():
            read_tokens(draft, key, attribute)
        for name in ("deepspeed", "deepspeed-config", "deepspeed-activation-checkpointing", "use-dynamic-batch-size",
                     "rampup-batch-size", "step-batch-size-schedule", "enable-expert-tensor-parallelism",
                     "cpu-offloading", "cpu-offloading-num-layers", "fine-grained-activation-offloading",
                     "fp4-param-gather", "use-megatron-fsdp", "use-custom-fsdp", "use-torch-fsdp2",
                     "overlapped-distributed-optimizer", "use-distributed-optimizer", "freeze-llm",
                     "torch-fsdp2-reshard-after-forward", "torch-fsdp2-no-reshard-after-forward", "cpu-optimizer"):
            said.leave(name, "as read, or off")


def _float(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return value
