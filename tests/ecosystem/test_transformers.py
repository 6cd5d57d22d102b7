"""transformers: tied weights, device maps, caches, and a training that goes on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lives import Life, goes_on, library, registered, trained

import torchmove as tm

transformers = library("transformers")

TIED = {
    "GPT2LMHeadModel": {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 40, "n_positions": 32},
    "LlamaForCausalLM": {
        "num_hidden_layers": 2,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 40,
        "tie_word_embeddings": True,
    },
    "T5ForConditionalGeneration": {
        "num_layers": 2,
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 24,
        "num_heads": 2,
        "vocab_size": 40,
        "decoder_start_token_id": 0,
    },
    "BertForMaskedLM": {
        "num_hidden_layers": 2,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_attention_heads": 2,
        "vocab_size": 40,
    },
}
NO_DROPOUT = {"resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout_rate", "hidden_dropout_prob"}


def small(name: str = "GPT2LMHeadModel") -> Any:
    kind = getattr(transformers, name)
    known = kind.config_class()
    off = {key: 0.0 for key in (*NO_DROPOUT, "attention_probs_dropout_prob") if hasattr(known, key)}
    config = kind.config_class(**TIED[name], **off, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    config._attn_implementation = "eager"
    return kind(config)


@pytest.mark.parametrize("name", TIED)
def test_a_tied_model_trains_on(name, route):
    def make() -> Life:
        model = small(name)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = transformers.get_linear_schedule_with_warmup(optimizer, 2, 20)

        def loss_of(device: torch.device) -> torch.Tensor:
            tokens = torch.randint(40, (2, 8)).to(device)
            return model(input_ids=tokens, labels=tokens).loss

        return trained(model, optimizer, loss_of, schedule)

    def still_tied(life: Life, device: torch.device) -> None:
        model = life.objects[0]
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
        assert model.device == device

    goes_on(make, route, still_tied)


def test_to_leaves_the_optimizer_with_the_old_weights_where_it_replaces_them(twin):
    model = small()
    optimizer = torch.optim.AdamW(model.parameters())
    model.to("twin:0")
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    assert not held & {id(parameter) for parameter in model.parameters()}


@pytest.mark.parametrize("kind", ["DynamicCache", "StaticCache", "EncoderDecoderCache"])
def test_a_cache_moves_as_an_object(kind, route):
    def make() -> Life:
        model = small("T5ForConditionalGeneration" if kind == "EncoderDecoderCache" else "LlamaForCausalLM").eval()
        length = {"max_cache_len": 16} if kind == "StaticCache" else {}
        if kind == "EncoderDecoderCache":
            halves = (transformers.DynamicCache(config=model.config) for _ in range(2))
            cache = transformers.EncoderDecoderCache(*halves)
        else:
            cache = getattr(transformers, kind)(config=model.config, **length)
        names = {"input_ids": "decoder_input_ids"} if kind == "EncoderDecoderCache" else {}

        @torch.no_grad()
        def live() -> Any:
            logits = []
            for _ in range(2):
                token = torch.randint(40, (1, 1)).to(model.device)
                more = {names["input_ids"]: token} if names else {}
                logits.append(model(input_ids=token, past_key_values=cache, use_cache=True, **more).logits)
            return logits

        return Life((model, cache), lambda: registered(model) | cached(cache), live)

    def where(life: Life, device: torch.device) -> None:
        assert {layer.device for layer in layers(life.objects[1])} == {device}

    goes_on(make, route, where)


def layers(cache: Any) -> list[Any]:
    halves = [cache.self_attention_cache, cache.cross_attention_cache] if hasattr(cache, "is_updated") else [cache]
    return [layer for half in halves for layer in half.layers]


def cached(cache: Any) -> dict[str, torch.Tensor]:
    return {
        f"cache {index} {name}": value
        for index, layer in enumerate(layers(cache))
        for name, value in vars(layer).items()
        if isinstance(value, torch.Tensor)
    }


def test_a_cache_has_no_to_method():
    assert not hasattr(transformers.DynamicCache, "to")


def test_generation_goes_on_with_its_config(route):
    def make() -> Life:
        model = small("LlamaForCausalLM").eval()
        model.generation_config.update(max_new_tokens=6, do_sample=False, pad_token_id=0)
        model.generation_config.update(cache_implementation="static", disable_compile=True)

        def live() -> Any:
            prompt = torch.randint(1, 40, (2, 3)).to(model.device)
            return model.generate(prompt, attention_mask=torch.ones_like(prompt))

        return Life((model,), lambda: registered(model), live)

    goes_on(make, route)


@pytest.mark.parametrize(("said", "there"), [("cpu", "twin"), (torch.device("cpu"), "device")])
def test_the_device_map_follows(said, there, twin):
    model = small()
    model.hf_device_map = {"": said}
    tm.move(model, to="twin:0")
    assert model.hf_device_map == {"": torch.device("twin:0") if there == "device" else there}
    tm.move(model, to="cpu")
    assert model.hf_device_map == {"": said}


def test_an_index_in_the_device_map_follows(twin):
    model = small()
    tm.move(model, to="twin:0")
    model.hf_device_map = {"": 0}
    tm.move(model, to="twin:1")
    assert model.hf_device_map == {"": 1}
    tm.move(model, to="cpu")
    assert model.hf_device_map == {"": "cpu"}


def test_to_leaves_the_device_map_as_it_was(twin):
    model = small()
    model.hf_device_map = {"": "cpu"}
    model.to("twin:0")
    assert model.hf_device_map == {"": "cpu"}


def test_a_trainer_s_plain_list_of_samples_stays(tmp_path, twin):
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = transformers.BertConfig(**sizes, vocab_size=10, max_position_embeddings=8)
    samples = [{"input_ids": torch.tensor([1, 2, 3]), "labels": torch.tensor(1)} for _ in range(4)]
    options = {"per_device_train_batch_size": 2, "max_steps": 2, "report_to": [], "use_cpu": True}
    trainer = transformers.Trainer(
        model=transformers.BertForSequenceClassification(config),
        args=transformers.TrainingArguments(output_dir=str(tmp_path), **options),
        train_dataset=samples,
        eval_dataset={"same": samples},
    )
    trainer.train()
    receipt = tm.move(trainer, to="twin:0")
    assert {tensor.device.type for each in samples for tensor in each.values()} == {"cpu"}
    assert {parameter.device.type for parameter in trainer.model.parameters()} == {"twin"}
    left = {note.path for note in receipt.plan.notes if note.code == "N031"}
    assert {"trainer.train_dataset", "trainer.eval_dataset"} <= left
    assert tm.move(trainer, to="cpu").verdict.ok
