"""bitsandbytes: quantised weights with what belongs to them, and optimizers that keep their state in bytes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from lives import Life, goes_on, library, registered, state_of, trained
from torch import nn

import torchmove as tm

bnb = library("bitsandbytes")


def quantised() -> Any:
    """As when weights are loaded: the numbers are there first, and the first `.to()` makes them small."""
    model = nn.Sequential(
        bnb.nn.Linear4bit(64, 64, compute_dtype=torch.float32, quant_type="nf4", compress_statistics=True),
        bnb.nn.Linear4bit(64, 64, compute_dtype=torch.float32, quant_type="fp4", compress_statistics=False),
        bnb.nn.Linear8bitLt(64, 64, has_fp16_weights=False),
    )
    model.load_state_dict(nn.Sequential(*(nn.Linear(64, 64) for _ in model)).state_dict())
    return model.to("cpu").requires_grad_(False)


def parts(model: Any) -> dict[str, torch.Tensor]:
    found = registered(model)
    for index in (0, 1):
        state = model[index].weight.quant_state
        assert model[index].quant_state is state  # the module has it too
        found |= {f"{index} absmax": state.absmax, f"{index} code": state.code}
    found |= {"0 offset": model[0].weight.quant_state.offset, "0 nested": model[0].weight.quant_state.state2.absmax}
    holder = model[2].weight if model[2].weight.CB is not None else model[2].state  # the first forward takes them over
    return found | {"2 CB": holder.CB, "2 SCB": holder.SCB}


def test_quantized_weights_predict_on(cpu_route):
    def make() -> Life:
        model = quantised()
        return Life((model,), lambda: parts(model), lambda: model(torch.randn(3, 64).to(model[0].weight.device)))

    goes_on(make, cpu_route)


def test_quantized_weights_move_before_their_first_use(cpu_route):
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(quantised())
        cpu_route.start(made[-1])
    model, other = made
    cpu_route.there(model)
    assert {tensor.device for tensor in parts(model).values()} == {cpu_route.away}
    cpu_route.back(model)
    x = torch.randn(3, 64).to(cpu_route.home)
    assert torch.equal(model(x), other(x))


def test_weights_that_are_packed_for_the_cpu_are_refused_and_the_remedy_works(twin):
    if not bnb.functional.has_avx512bf16():
        pytest.skip("this CPU has no kernels that weights are packed for")
    model = quantised().eval()
    model(torch.randn(3, 64))
    with pytest.raises(tm.MoveRefused) as error:
        tm.move(model, to="twin:0")
    assert {(refusal.code, refusal.path) for refusal in error.value.refusals} == {
        ("R036", "model[0]"),
        ("R036", "model[1]"),
    }
    model.state_dict()
    tm.move(model, to="twin:0")
    assert model[0].weight.quant_state.absmax.device.type == "twin"


def test_weights_that_are_not_quantized_yet_are_refused_and_the_remedy_works(twin):
    model = nn.Sequential(bnb.nn.Linear4bit(64, 64), bnb.nn.Linear8bitLt(64, 64, has_fp16_weights=False))
    with pytest.raises(tm.MoveRefused) as error:
        tm.move(model, to="twin:0")
    assert {(refusal.code, refusal.path) for refusal in error.value.refusals} == {
        ("R037", "model[0]"),
        ("R037", "model[1]"),
    }
    model.to("cpu")
    tm.move(model, to="twin:0")
    assert model[0].weight.dtype is torch.uint8
    assert model[1].weight.dtype is torch.int8


def test_adapters_on_quantized_weights_train_on(cpu_route):
    peft, transformers = library("peft"), library("transformers")

    def make() -> Life:
        config = transformers.LlamaConfig(
            num_hidden_layers=1,
            hidden_size=64,
            intermediate_size=64,
            num_attention_heads=2,
            vocab_size=40,
            attn_implementation="eager",
        )
        model = transformers.LlamaForCausalLM(config)
        for layer in model.model.layers:
            for name in ("q_proj", "v_proj"):
                small = bnb.nn.Linear4bit(64, 64, bias=False, compute_dtype=torch.float32, quant_type="nf4")
                small.load_state_dict(getattr(layer.self_attn, name).state_dict())
                setattr(layer.self_attn, name, small.to("cpu"))
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
        optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)

        def loss_of(device: torch.device) -> torch.Tensor:
            tokens = torch.randint(40, (2, 6)).to(device)
            return model(input_ids=tokens, labels=tokens).loss  # type: ignore[no-any-return]

        return trained(model, optimizer, loss_of)

    goes_on(make, cpu_route)


@pytest.mark.parametrize("name", ["Adam8bit", "AdamW8bit", "Lion8bit", "SGD8bit", "AdamW"])
def test_an_optimizer_of_bytes_trains_on(name, cpu_route):
    def make() -> Life:
        model = nn.Sequential(nn.Linear(128, 64), nn.Linear(64, 4))
        momentum = {"momentum": 0.9} if name == "SGD8bit" else {}
        optimizer = getattr(bnb.optim, name)(model.parameters(), lr=1e-2, **momentum)
        life = trained(model, optimizer, lambda device: model(torch.randn(3, 128).to(device)).square().mean())
        life.tensors = lambda: registered(model) | state_of(optimizer)
        return life

    def small(life: Life, device: torch.device) -> None:
        keys = {key for state in life.objects[1].state.values() for key in state}
        assert name == "AdamW" or {"qmap1", "absmax1", "state1"} <= keys

    goes_on(make, cpu_route, small)


def stepped(kind: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = nn.Linear(128, 128)
    optimizer = kind(model.parameters(), lr=1e-2)
    model(torch.ones(2, 128)).square().mean().backward()
    optimizer.step()
    return model, optimizer


def test_a_paged_optimizer_on_the_cpu_has_no_pages_and_moves(twin):
    model, optimizer = stepped(bnb.optim.PagedAdamW8bit)
    tm.move(model, optimizer, to="twin:0")
    assert {tensor.device.type for tensor in state_of(optimizer).values()} == {"twin"}


def test_pages_are_refused_and_the_remedy_works(twin):
    model, paged = stepped(bnb.optim.PagedAdamW8bit)
    # What bitsandbytes writes on a tensor whose memory it has from the driver, which takes a GPU.
    paged.state[model.weight]["state1"].is_paged = True
    with pytest.raises(tm.MoveRefused) as error:
        tm.move(model, paged, to="twin:0")
    assert {refusal.code for refusal in error.value.refusals} == {"R029"}
    plain = bnb.optim.AdamW8bit(model.parameters(), lr=1e-2)
    plain.load_state_dict(copy.deepcopy(paged.state_dict()))
    tm.move(model, plain, to="twin:0")
    assert {tensor.device.type for tensor in state_of(plain).values()} == {"twin"}


@pytest.mark.cuda
def test_pages_on_a_gpu_are_refused():
    model = nn.Linear(1024, 1024, device="cuda")
    optimizer = bnb.optim.PagedAdamW8bit(model.parameters())
    model(torch.ones(2, 1024, device="cuda")).sum().backward()
    optimizer.step()
    with pytest.raises(tm.MoveRefused) as error:
        tm.move(model, optimizer, to="cpu")
    assert "R029" in {refusal.code for refusal in error.value.refusals}


def test_to_leaves_the_state_of_the_optimizer_behind(twin):
    model, optimizer = stepped(bnb.optim.AdamW8bit)
    model.to("twin:0")
    assert {tensor.device.type for tensor in state_of(optimizer).values()} == {"cpu"}
