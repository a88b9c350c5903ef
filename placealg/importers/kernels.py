"""How a file runs its model: attention, dropout and loss, as the options of the model that they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from placealg.importers.document import dotted
from placealg.importers.draft import Draft

ONE_OP = re.compile(r"sdpa|flash|flex|xformers|fa\d|auto|ring")
"""What is in a word of transformers and trainers under which attention is one kernel, which keeps no scores."""

WRITTEN = ("eager", "disabled", "dot_product")
"""Words under which attention is written out op by op."""


def run_attention(draft: Draft, key: str, one_op: bool) -> None:
    """Attention is one op, or written out, by what stands under `key`."""
    draft.runs["flash"] = one_op
    draft.said.read(key, "--flash: attention is one op" if one_op else "--no-flash: attention is written out")


def run_loss(draft: Draft, key: str, name: str) -> None:
    """The cross entropy is run as `name` of the ways there are, by what stands under `key`."""
    draft.runs["loss"] = name
    draft.said.read(key, f"--loss {name}")


def run_dropout(draft: Draft, keys: Iterable[str]) -> None:
    """Dropout by its rates, which stand under `keys`: all that the model has, or none.

    A rate that depends on what nothing sets leaves dropout to the model's family.
    """
    said = draft.said
    rates: dict[str, float] = {}
    for key in keys:
        value = said.value(key)
        if value is None or said.accounted(said.path(key)):
            return
        rates[key] = said.amount(key)
    on = any(rates.values())
    draft.runs["dropout"] = on
    for key, rate in rates.items():
        if on and not rate:
            said.approximated(key, "dropout is everywhere in the model here, or nowhere: also where this rate is 0")
        else:
            said.read(key, "--dropout" if on else "--no-dropout")


WORDS = ("attn_implementation", "_attn_implementation", "flash_attn", "attention")
"""Keys, by their last word, whose value names how attention is run."""

SWITCHES = {"flash_attention": True, "use_flash_attention": True, "use_flash_attn": True,
            "use_flash_attention_2": True, "sdp_attention": True, "xformers_attention": True,
            "flex_attention": True, "eager_attention": False}
"""Keys that switch one way of attention on -> whether that is one op."""

RATES = {"attention_dropout": False, "attn_pdrop": False, "embed_pdrop": False, "embd_pdrop": False,
         "hidden_dropout": True, "resid_pdrop": True, "dropout_rate": True}
"""Keys of a rate of dropout -> whether it is that of the residual stream, without which a model has none."""

SHIFTED = ("s2_attention", "shift_attn")
"""Keys of shifted sparse attention (LongLoRA, arXiv 2309.12307)."""

LIGER = ("use_liger_kernel", "enable_liger_kernel", "liger_fused_linear_cross_entropy")
"""Keys that fuse the loss with the product that makes the logits, a few rows at a time (Liger-Kernel)."""

CUT = "--loss chunked: logits are made and used a block at a time, which holds less"
"""What becomes of cut cross entropy (Wijmans et al., arXiv 2411.09009)."""

ASKED = frozenset((*WORDS, *SWITCHES, *RATES, *SHIFTED, *LIGER, "liger_cross_entropy", "cut_cross_entropy"))


def read_words(draft: Draft) -> None:
    """Attention, dropout and loss by the keys that trainers of transformers' models share, wherever they stand."""
    said = draft.said
    rates: dict[str, float] = {}
    for path, value in said.document.leaves():
        key, word = dotted(path), str(path[-1])
        if word not in ASKED or value is None or said.accounted(path) or "[" in key or said.raw(key) is None:
            continue
        if word in WORDS and isinstance(value, str):
            _implementation(draft, key, value.lower())
        elif word in SWITCHES and said.truth(key, value):
            run_attention(draft, key, SWITCHES[word])
        elif word in SHIFTED and said.truth(key, value):
            said.approximated(key, "attention is within groups of positions, half of them shifted: here it is over all")
        elif word in RATES:
            rates[key] = said.rate(key, value)
        elif word in LIGER and said.truth(key, value):
            run_loss(draft, key, "chunked")
        elif word == "liger_cross_entropy" and said.truth(key, value):
            run_loss(draft, key, "fused")
        elif word == "cut_cross_entropy" and said.truth(key, value):
            draft.runs["loss"] = "chunked"
            said.approximated(key, CUT)
    _rates(draft, rates)


def _rates(draft: Draft, rates: Mapping[str, float]) -> None:
    for key, rate in rates.items():
        if rate:
            draft.runs["dropout"] = True
            draft.said.approximated(key, "--dropout: it is of attention, of residuals and of the embedding here")
        elif any(rates.values()) or not any(RATES[k.rpartition(".")[2]] for k in rates):
            draft.said.leave(key, "0: the rest is as the model has it")
        else:
            draft.runs["dropout"] = False
            draft.said.read(key, "--no-dropout")


def _implementation(draft: Draft, key: str, word: str) -> None:
    """Attention by a trainer's word for it; another word is unsaid."""
    if word in WRITTEN or ONE_OP.search(word):
        run_attention(draft, key, word not in WRITTEN)
    else:
        draft.said.unsaid(key, f"{word}: whether attention is one op is not known", "--flash, --no-flash")
