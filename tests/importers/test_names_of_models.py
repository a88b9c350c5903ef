"""Models by their names: those of no op graph are refused by what they have; those that are not here are wanted."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from placealg.cases.case import read_case
from placealg.errors import InputError
from placealg.importers.names import alike_name, kind_without_graph
from placealg.importers.read import read
from placealg.models.config import published, resolve_model, shipped

FORMS = {"axolotl": "base_model: {}\ndatasets: [{{path: mine}}]\nmicro_batch_size: 1\n",
         "llamafactory": "model_name_or_path: {}\nstage: sft\nfinetuning_type: {kind}\n"}

WITHOUT = [("tiiuae/Falcon-H1-7B-Instruct", "states"), ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "states"),
           ("ibm-granite/granite-4.0-h-small", "states"), ("google/gemma-3n-E4B-it", "share keys"),
           ("google/gemma-4-27b-it", "share keys"), ("deepseek-ai/DeepSeek-V3.2", "indexer"),
           ("mistralai/Pixtral-12B-2409", "images"), ("Qwen/Qwen3.5-9B", "states")]


@pytest.mark.parametrize(("name", "part"), WITHOUT)
@pytest.mark.parametrize("form", FORMS)
def test_a_network_of_other_ops_is_refused_by_what_it_has(form: str, name: str, part: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(FORMS[form].format(name, kind="full"), encoding="utf-8")
    with pytest.raises(InputError, match=f"is a network .*{part}"):
        read(path)


@pytest.mark.parametrize("name", [*shipped(), *(n.rpartition("/")[2] for n in published()), "nemotron-3-8b-base-4k",
                                  "llama-3.1-nemotron-nano-8b-v1", "granite-3.1-8b-base", "gemma-3-1b-it"])
def test_what_is_read_is_of_no_other_kind(name: str) -> None:
    assert kind_without_graph(name) == ""


def test_a_model_that_is_not_here_stands_for_itself(tmp_path: Path) -> None:
    """Invented names stand for no shipped model: the strategy is read, and proofs and figures want --model."""
    random = Random("names")
    for _ in range(8):
        word = "".join(random.choice("abcdefghkmnoprstuvwz") for _ in range(random.randint(5, 9)))
        name = f"mine/{word}-{random.choice([1, 3, 7, 8, 13, 70])}b{random.choice(['', '-chat', '-v2'])}"
        form = random.choice(list(FORMS))
        path = tmp_path / "run.yaml"
        path.write_text(FORMS[form].format(name, kind=random.choice(["full", "lora"])), encoding="utf-8")
        reading = read(path)
        assert reading.model is None and reading.unread.startswith(f"{name}: its config.json is not here")
        with pytest.raises(InputError, match=r"run.yaml: mine/.*; --model config.json gives the model"):
            read_case(str(path), None, ())
        assert read_case(str(path), "llama-3-8b", ()).model.name == "llama-3-8b"


@pytest.mark.parametrize(("name", "alike"), [
    ("Qwen/Qwen2.5-Coder-7B-Instruct", "Qwen/Qwen2.5-7B"), ("unsloth/Llama-3.2-1B-Instruct", "meta-llama/Llama-3.2-1B"),
    ("NousResearch/Meta-Llama-3-8B-Instruct", "llama-3-8b"), ("Qwen/Qwen3-14B", "Qwen/Qwen3-8B"),
    ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"), ("deepseek-ai/DeepSeek-V3.2-Exp", ""), ("mine/llama", ""),
    ("Qwen/Qwen2-57B-A14B", "")])
def test_a_name_of_a_family_is_told(name: str, alike: str, tmp_path: Path) -> None:
    """A name that tells the family stands on a model of the same ops, which is said by name and never in silence."""
    if kind_without_graph(name.rpartition("/")[2]):
        return
    assert alike_name(name) == alike
    if alike:
        path = tmp_path / "run.yaml"
        path.write_text(FORMS["axolotl"].format(name), encoding="utf-8")
        assert resolve_model(alike).family
        assert any(f"{alike} stands in" in text for text in read_case(str(path), None, ()).model.left_out)
