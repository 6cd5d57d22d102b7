"""PEFT: adapters beside frozen weights, several of them, active and not, on a tied weight too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lives import Life, goes_on, library, trained

peft = library("peft")
transformers = library("transformers")


def base() -> Any:
    config = transformers.LlamaConfig(
        num_hidden_layers=2,
        hidden_size=16,
        intermediate_size=24,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=40,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    return transformers.LlamaForCausalLM(config)


KINDS = {
    "lora": lambda: peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False),
    "dora": lambda: peft.LoraConfig(r=4, target_modules=["q_proj"], use_dora=True, init_lora_weights=False),
    "tied": lambda: peft.LoraConfig(r=4, target_modules=["embed_tokens", "q_proj"], init_lora_weights=False),
    "saved": lambda: peft.LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"]),
    "vera": lambda: peft.VeraConfig(r=4, target_modules=["q_proj", "o_proj"], init_weights=False),
    "ia3": lambda: peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "prompt": lambda: peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"),
}


def training(model: Any) -> Life:
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)

    def loss_of(device: torch.device) -> torch.Tensor:
        tokens = torch.randint(40, (2, 6)).to(device)
        return model(input_ids=tokens, labels=tokens).loss  # type: ignore[no-any-return]

    return trained(model, optimizer, loss_of)


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_trains_on(kind, route):
    goes_on(lambda: training(peft.get_peft_model(base(), KINDS[kind]())), route)


def test_several_adapters_move_the_active_one_trains_on_and_the_other_can_be_woken(route):
    def make() -> Life:
        model = peft.get_peft_model(base(), KINDS["lora"](), adapter_name="one")
        model.add_adapter("other", KINDS["lora"]())
        model.set_adapter("one")
        return training(model)

    def active(life: Life, device: torch.device) -> None:
        model = life.objects[0]
        assert model.active_adapter == "one"
        for name, parameter in model.named_parameters():
            assert parameter.requires_grad == (".one." in name)
        model.set_adapter("other")
        tokens = torch.arange(6, device=device)[None]
        with torch.no_grad():
            others = model(input_ids=tokens).logits
            model.set_adapter("one")
            assert not torch.equal(model(input_ids=tokens).logits, others)

    goes_on(make, route, active)


def test_a_merged_adapter_unmerges_after_a_move(cpu_route):
    model = peft.get_peft_model(base(), KINDS["lora"]())
    other = peft.get_peft_model(base(), KINDS["lora"]())
    other.load_state_dict(model.state_dict())
    for each in (model, other):
        cpu_route.start(each)
        each.merge_adapter()
    cpu_route.there(model)
    cpu_route.back(model)
    for each in (model, other):
        each.unmerge_adapter()
    theirs = other.state_dict()
    assert [name for name, value in model.state_dict().items() if not torch.equal(value, theirs[name])] == []


def test_to_leaves_the_optimizer_of_the_adapters_behind(twin):
    life = training(peft.get_peft_model(base(), KINDS["lora"]()))
    life.live()
    model, optimizer, *_ = life.objects
    model.to("twin:0")
    assert {value["exp_avg"].device.type for value in optimizer.state.values()} == {"cpu"}
