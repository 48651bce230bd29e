"""Draft heads by name and by config: every field that is read changes the head, what is not known is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

from draftcast.errors import ModelError
from draftcast.kernels.model import heads
from draftcast.kernels.model.catalog import load_model
from draftcast.kernels.model.heads import read_head, resolve_head
from draftcast.kernels.model.spec import ModelSpec
from draftcast.kernels.work.layers import elementwise_work, linear_layers, lm_head

QWEN = load_model("Qwen3-8B")
HEADS = json.loads(Path(heads.__file__).with_name("heads.json").read_text())["heads"]
EAGLE3 = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "draft_vocab_size": 32000,
    "max_position_embeddings": 40960,
}
DSPARK = EAGLE3 | {
    "architectures": ["DSparkDraftModel"],
    "draft_vocab_size": None,
    "block_size": 7,
    "dflash_config": {"target_layer_ids": [1, 9, 17], "markov_rank": 256},
}


DFLASH2 = DSPARK | {
    "architectures": ["DFlash2DraftModel"],
    "dflash_config": {"target_layer_ids": [1, 9, 17], "block_size": 8}
    | {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16},
}


def built(config: dict[str, Any], target: ModelSpec = QWEN, k: int = 3) -> ModelSpec:
    return read_head(config, "a head").build(target, k)


def test_bundled_heads_are_read_and_named_by_their_repositories() -> None:
    """45 shapes of SpecForge, and four heads whose own configs or sources state their shape."""
    assert len(json.loads((ROOT / "kernels/model/heads.json").read_text("utf-8"))["heads"]) == 49
    named = {
        "lmsys/SGLang-EAGLE3-Llama-3.1-8B-Instruct-SpecForge": ("Llama-3.1-8B", 1, 14336, 32000),
        "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3": ("Llama-3.1-8B", 1, 14336, 32000),
        "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B": ("Llama-3.1-8B", 1, 14336, 32000),
        "zhuyksir/EAGLE3-Qwen3-30B-A3B-DenseHead": ("Qwen3-30B-A3B", 1, 12288, 32000),
        "own EAGLE-3 head, draft vocab 151936 (full)": ("Qwen3-8B", 1, 12288, 151936),
    }
    for name, (target, layers, mlp, vocab) in named.items():
        head = resolve_head("eagle3", load_model(target), 3, name)
        assert head.assumed == ()
        assert (head.spec.num_hidden_layers, head.spec.intermediate_size, head.spec.vocab_size) == (layers, mlp, vocab)


def test_a_head_of_its_own_checkpoint_by_hand() -> None:
    head, h = built(EAGLE3), 4096
    qkv = (32 + 2 * 8) * 128
    assert head.num_parameters == 3 * h * h + 2 * h * qkv + 32 * 128 * h + 3 * h * 12288 + 32000 * h + 4 * h


@pytest.mark.parametrize(
    ("change", "layer"),
    [
        ({"num_hidden_layers": 2}, "o"),
        ({"intermediate_size": 8192}, "down"),
        ({"num_attention_heads": 16}, "o"),
        ({"num_key_value_heads": 4}, "qkv_first"),
        ({"head_dim": 64}, "o"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 9, 17, 25, 33]}}, "fc"),
        ({"hidden_size": 2048, "target_hidden_size": 4096}, "fc"),
        ({"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 768}, "experts_down"),
    ],
)
def test_every_field_changes_its_matrix(change: dict[str, Any], layer: str) -> None:
    def matrix(spec: ModelSpec) -> Any:
        return {each.name: each for each in linear_layers(spec)}.get(layer)

    assert matrix(built(EAGLE3 | change)) != matrix(built(EAGLE3))
    assert built(EAGLE3 | change).num_parameters != built(EAGLE3).num_parameters


def test_the_draft_vocabulary_is_the_lm_heads() -> None:
    assert lm_head(built(EAGLE3)).n == 32000
    whole = {key: value for key, value in EAGLE3.items() if key != "draft_vocab_size"}
    assert lm_head(built(whole)).n == 151936  # vLLM's llama_eagle3 takes the target's
    dspark = built(DSPARK)
    assert dspark.shares_lm_head
    assert lm_head(dspark).n == 151936
    own = built(DSPARK | {"draft_vocab_size": 32000})
    assert (own.shares_lm_head, own.vocab_size) == (False, 32000)
    assert own.num_parameters - dspark.num_parameters == 32000 * 4096 - 2 * 256 * (151936 - 32000)


def test_window_markov_rank_and_captured_layers_of_a_block_drafter() -> None:
    assert (built(DSPARK).markov_rank, built(DSPARK).fc_input_size) == (256, 3 * 4096)
    assert built(DSPARK | {"dflash_config": {"markov_rank": 64}}).markov_rank == 64
    types = {"num_hidden_layers": 2, "sliding_window": 512, "layer_types": ["sliding_attention", "full_attention"]}
    assert (built(DSPARK | types).sliding_window, built(DSPARK | types).num_sliding_layers) == (512, 1)
    unsaid = read_head(DSPARK | {"sliding_window": 512}, "a head")
    assert unsaid.assumed == ("a head has sliding_window = 512 and no layer_types: assumed full attention",)
    assert unsaid.build(QWEN, 3).num_sliding_layers == 0
    assert read_head(DSPARK | {"sliding_window": 512, "use_sliding_window": False}, "a head").assumed == ()


def test_a_quantization_that_is_not_read_is_said() -> None:
    section = {"quantization_config": {"quant_method": "fp8"}}
    said = "a head has a quantization_config: assumed 16 bits unless speculative_config.quantization is given"
    for config in (EAGLE3, {"medusa_num_heads": 4, "hidden_size": 4096}):
        assert read_head(config | section, "a head").assumed == (said,)
        assert read_head(config | {"quantization_config": None}, "a head").assumed == ()
    both = read_head(DSPARK | section | {"sliding_window": 512}, "a head").assumed
    assert (both[0], len(both)) == (said, 2)


def test_a_dflash2_head_is_as_large_as_its_checkpoint() -> None:
    """The repository's weights are 3.85 GB in 16 bits, without the target's embedding and lm_head."""
    for name in ("z-lab/Qwen3.8-27B-DFlash2", "incoai/Qwen3.8-27B-DFlash2"):
        head = resolve_head("dflash", load_model("Qwen3.6-27B"), 7, name)
        assert head.assumed == ()
        assert 2 * head.spec.num_parameters == pytest.approx(3.85e9, rel=1e-3)
        assert (head.spec.sliding_window, head.spec.num_sliding_layers) == (2048, 5)


@pytest.mark.parametrize(
    ("key", "value", "names", "parameters"),
    [
        # One layer: around attention and MLP each the kernels of two convolutions, of so many taps.
        ("conv_kernel_size", 4, {"conv_kernel"}, 2 * 2 * 2 * (4096 * 4096 // 16 + 4096)),
        ("conv_group_size", 32, {"conv_kernel"}, -2 * 2 * 2 * (4096 * 4096 // 32)),
        ("selector_rank", 512, {"selector"}, 256 * (4096 + 2 * 151936)),
        ("selector_top_k", 32, set(), 0),
    ],
)
def test_a_field_of_dflash2_changes_what_it_says(key: str, value: int, names: set[str], parameters: int) -> None:
    other = built(DFLASH2 | {"dflash_config": DFLASH2["dflash_config"] | {key: value}})
    before, after = ({layer.name: layer for layer in linear_layers(head)} for head in (built(DFLASH2), other))
    assert {name for name in after if after[name] != before[name]} == names
    assert other.num_parameters - built(DFLASH2).num_parameters == parameters
    rows = [elementwise_work(head, 8).bytes for head in (built(DFLASH2), other)]
    if key == "conv_group_size":
        rows.reverse()
    assert rows[1] > rows[0]


def test_a_dflash2_head_by_hand() -> None:
    dflash = built(DSPARK | {"architectures": ["DFlashDraftModel"]})
    dflash2 = built(DFLASH2)
    more = {layer.name: (layer.k, layer.n, layer.count) for layer in linear_layers(dflash2, 2)}
    less = {layer.name for layer in linear_layers(dflash, 2)}
    # Whole on both ranks: for two taps and two sides a number of every 16 channels, in front of attention and of MLP.
    assert {name: more[name] for name in more.keys() - less} == {
        "conv_kernel": (4096, 2 * 2 * 4096 // 16, 2),
        "selector": (4096, 256, 1),
    }
    # Four convolutions read and write a row and read a kernel, the selector reads 2 x 16 rows of codebooks and writes
    # 16 x 16 scores.
    elements = 4 * (2 * 4096 + 2 * 4096 // 16) + 2 * 16 * 256 + 16 * 16
    assert elementwise_work(dflash2, 3).bytes - elementwise_work(dflash, 3).bytes == 3 * 2 * elements


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"selector_top_k": None}, "selector_top_k: an integer >= 1 is needed"),
        ({"conv_group_size": 48}, "conv_group_size = 48: a divisor of the hidden size 4096"),
    ],
)
def test_a_bad_dflash2_config_is_refused_by_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        built(DFLASH2 | {"dflash_config": DFLASH2["dflash_config"] | change})


@pytest.mark.parametrize(
    ("name", "layer"), [("x/Qwen3-8B-DFlash2", True), ("x/Qwen3-8B-DFlash-2", True), ("x/y", False)]
)
def test_an_unknown_dflash_head_is_of_the_kind_that_its_name_says(name: str, layer: bool) -> None:
    head = resolve_head("dflash", QWEN, 3, name)
    assert ("conv_kernel" in {each.name for each in linear_layers(head.spec)}) is layer
    assert "assumed " + ("dflash2's usual shape" if layer else "the shape of qwen3-8b-dflash") in head.assumed[0]


@pytest.mark.parametrize(
    ("method", "name", "most"), [("dflash", "qwen3-8b-dflash", 15), ("dspark", "qwen3-8b-dspark", 7)]
)
def test_more_drafts_than_the_block_holds_are_said(method: str, name: str, most: int) -> None:
    assert resolve_head(method, QWEN, most, name).assumed == ()
    (said,) = resolve_head(method, QWEN, most + 1, name).assumed
    assert said.startswith(f"num_speculative_tokens = {most + 1} is beyond the {most} drafts of {name}'s block")


def test_the_speculators_format_nests_the_layer() -> None:
    layer = {key: value for key, value in EAGLE3.items() if key not in ("architectures", "draft_vocab_size")}
    nested = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 32000,
        "target_hidden_size": None,
        "transformer_layer_config": layer,
    }
    assert built(nested) == built(EAGLE3)


def test_heads_without_layers() -> None:
    medusa = {"medusa_num_heads": 4, "hidden_size": 4096}
    assert built(medusa).num_draft_heads == 4
    with pytest.raises(ModelError, match="num_speculative_tokens = 5: must be at most 4"):
        built(medusa, k=5)
    speculator = {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "n_predict": 3,
        "inner_dim": 2048,
        "emb_dim": 4096,
        "vocab_size": 151936,
    }
    assert (built(speculator).num_draft_heads, built(speculator).hidden_size) == (3, 2048)


def test_a_folder_or_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(EAGLE3 | {"num_hidden_layers": 2}))
    for path in (tmp_path, tmp_path / "config.json"):
        head = resolve_head("eagle3", QWEN, 3, str(path))
        assert (head.spec.num_hidden_layers, head.assumed) == (2, ())
    with pytest.raises(ModelError, match="no such file"):
        resolve_head("eagle3", QWEN, 3, str(tmp_path / "other.json"))


@pytest.mark.parametrize("name", [None, "somebody/a-head"])
def test_an_unknown_head_has_the_shape_of_the_public_one_and_says_so(name: str | None) -> None:
    head = resolve_head("eagle3", QWEN, 3, name)
    assert head.spec == resolve_head("eagle3", QWEN, 3, "qwen3-8b-eagle3").spec
    subject = "the scenario names no draft head" if name is None else "draft head somebody/a-head is not known"
    shape = "1 layer of hidden size 4096, MLP 12288, draft vocabulary 32000, 3 captured layers"
    assert head.assumed == (f"{subject}: assumed the shape of qwen3-8b-eagle3: {shape}",)


def test_without_a_public_head_the_methods_usual_shape_is_assumed() -> None:
    (said,) = resolve_head("eagle3", load_model("Llama-3.2-3B"), 3, None).assumed
    assert "assumed eagle3's usual shape for Llama-3.2-3B: 1 layer of hidden size 3072, MLP 8192" in said


@pytest.mark.parametrize(
    ("name", "kind"), [(None, "eagle"), ("lmsys/some-EAGLE3-head", "eagle3"), ("EAGLE-3", "eagle3")]
)
def test_a_trees_unknown_head_is_what_its_name_says(name: str | None, kind: str) -> None:
    head = resolve_head("eagle_tree", QWEN, 3, name).spec
    assert head == resolve_head(kind, QWEN, 3, None).spec


def test_mtp_is_the_targets_own_layer() -> None:
    deepseek = load_model("DeepSeek-V3")
    for name in (None, "deepseek-ai/DeepSeek-V3"):
        assert resolve_head("mtp", deepseek, 1, name).assumed == ()
    (said,) = resolve_head("mtp", deepseek, 1, "somebody/NextN").assumed
    assert said == "draft head somebody/NextN is not known: assumed DeepSeek-V3's own MTP layer"


@pytest.mark.parametrize(
    ("method", "target", "name", "message"),
    [
        ("dflash", "Qwen3-8B", "qwen3-8b-eagle3", "is a head for method eagle3, not for dflash"),
        ("eagle3", "Qwen3-32B", "qwen3-8b-eagle3", "made for a target of hidden size 4096; Qwen3-32B's is 5120"),
        (
            "eagle3",
            "Llama-3.1-8B",
            "qwen3-8b-eagle3",
            "made for a target of vocabulary 151936; Llama-3.1-8B's is 128256",
        ),
    ],
)
def test_a_head_of_another_method_or_target_is_refused(method: str, target: str, name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        resolve_head(method, load_model(target), 3, name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, "architectures = 'Qwen3ForCausalLM': no draft head's; known:"),
        ({"hidden_size": None}, "hidden_size: missing"),
        ({"draft_vocab_size": -1}, "draft_vocab_size = -1"),
        ({"eagle_aux_hidden_state_layer_ids": 3}, "a list of layer numbers is needed"),
        (
            {"speculators_model_type": ["eagle3"]},
            r"speculators_model_type = \['eagle3'\]: no draft head's; known: eagle,",
        ),
    ],
)
def test_bad_configs_are_refused_by_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_head(EAGLE3 | change, "a head")
    with pytest.raises(ModelError, match="at most the target's vocab_size"):
        built(EAGLE3 | {"draft_vocab_size": 200_000})


def test_no_two_bundled_heads_have_a_name_in_common() -> None:
    names = [key.lower() for name, entry in HEADS.items() for key in (name, *entry["aliases"])]
    assert len(set(names)) == len(names)
