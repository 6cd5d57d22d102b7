"""Models of real libraries: rehearsed, and on a GPU run for real, with the same verdict and the memory foretold."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

import torchmove as tm

pytestmark = pytest.mark.filterwarnings("ignore")

WORDS = 60
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
TEXT = {"vocab_size": WORDS, "max_position_embeddings": 64, **SMALL}
SHARED_KEYS = {**TEXT, "num_key_value_heads": 1}
GPT = {"vocab_size": WORDS, "n_layer": 2, "n_head": 2}
ENCODER_DECODER = {
    **{f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")},
    "vocab_size": WORDS,
    "d_model": 16,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}
# Model, its configuration and that of the model, what the batch is made of.
ARCHITECTURES = {
    "GPT2LMHeadModel": ("GPT2Config", {**GPT, "n_embd": 16, "n_positions": 64}, "text"),
    "BertForMaskedLM": ("BertConfig", TEXT, "text"),
    "RobertaForMaskedLM": ("RobertaConfig", TEXT, "text"),
    "DistilBertForMaskedLM": (
        "DistilBertConfig",
        {"vocab_size": WORDS, "dim": 16, "n_layers": 2, "n_heads": 2},
        "text",
    ),
    "AlbertForMaskedLM": ("AlbertConfig", {**TEXT, "embedding_size": 8}, "text"),
    "ElectraForMaskedLM": ("ElectraConfig", {**TEXT, "embedding_size": 8}, "text"),
    "T5ForConditionalGeneration": (
        "T5Config",
        {"vocab_size": WORDS, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "decoder_start_token_id": 0},
        "text",
    ),
    "BartForConditionalGeneration": ("BartConfig", {**ENCODER_DECODER, "max_position_embeddings": 64}, "text"),
    "LlamaForCausalLM": ("LlamaConfig", TEXT, "text"),
    "MistralForCausalLM": ("MistralConfig", SHARED_KEYS, "text"),
    "Qwen2ForCausalLM": ("Qwen2Config", SHARED_KEYS, "text"),
    "OPTForCausalLM": (
        "OPTConfig",
        {**{key: TEXT[key] for key in TEXT if key != "intermediate_size"}, "ffn_dim": 32, "word_embed_proj_dim": 16},
        "text",
    ),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", TEXT, "text"),
    "BloomForCausalLM": ("BloomConfig", {**GPT, "hidden_size": 16}, "text"),
    "FalconForCausalLM": (
        "FalconConfig",
        {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
        "text",
    ),
    "PhiForCausalLM": ("PhiConfig", TEXT, "text"),
    "GemmaForCausalLM": ("GemmaConfig", {**SHARED_KEYS, "head_dim": 8}, "text"),
    "DebertaV2ForSequenceClassification": ("DebertaV2Config", TEXT, "sentences"),
    "MPNetForMaskedLM": ("MPNetConfig", TEXT, "text"),
    "XLNetForSequenceClassification": ("XLNetConfig", {**GPT, "d_model": 16, "d_inner": 32}, "sentences"),
    "ViTForImageClassification": ("ViTConfig", {**SMALL, "image_size": 32, "patch_size": 8}, "images"),
    "ConvNextForImageClassification": ("ConvNextConfig", {"hidden_sizes": [8] * 4, "depths": [1] * 4}, "images"),
}
VISION = [
    *("resnet18", "resnet50", "vgg11", "densenet121", "mobilenet_v2", "mobilenet_v3_small"),
    *("shufflenet_v2_x0_5", "squeezenet1_1", "efficientnet_b0", "regnet_y_400mf", "vit_b_16", "swin_t"),
]


def batch_of(kind: str) -> dict[str, torch.Tensor]:
    if kind == "images":
        return {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 1])}
    words = torch.randint(5, WORDS, (2, 8))
    labels = torch.tensor([0, 1]) if kind == "sentences" else words
    return {"input_ids": words, "attention_mask": torch.ones(2, 8, dtype=torch.long), "labels": labels}


def architecture(name):
    transformers = pytest.importorskip("transformers")
    configuration, options, kind = ARCHITECTURES[name]
    model = getattr(transformers, name)(getattr(transformers, configuration)(**options))
    return model, torch.optim.AdamW(model.parameters()), batch_of(kind)


def step(model, optimizer, batch):
    batch = {key: value.to("cuda") for key, value in batch.items()}
    model(**batch).loss.backward()
    optimizer.step()


def careless_step(model, optimizer, batch):
    (first, forgotten), *others = batch.items()
    model(**{first: forgotten}, **{key: value.to("cuda") for key, value in others}).loss.backward()
    optimizer.step()


def vision(name):
    torchvision = pytest.importorskip("torchvision")
    model = getattr(torchvision.models, name)(num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return model, optimizer, torch.randn(2, 3, 224, 224), torch.tensor([1, 2])


def vision_step(model, optimizer, images, labels):
    functional.cross_entropy(model(images.cuda()), labels.cuda()).backward()
    optimizer.step()


def careless_vision_step(model, optimizer, images, labels):
    functional.cross_entropy(model(images.cuda()), labels).backward()


CASES = [
    *((architecture, name, step, careless_step) for name in ARCHITECTURES),
    *((vision, name, vision_step, careless_vision_step) for name in VISION),
]


@pytest.mark.parametrize(
    ("make", "name", "right", "wrong"), CASES, ids=lambda each: each if isinstance(each, str) else ""
)
def test_rehearsed(make, name, right, wrong):
    objects = make(name)
    found = tm.rehearse(right, *objects)
    assert [each for each in found.findings if not each.is_note] == []
    assert found.stopped == ""
    found = tm.rehearse(wrong, *objects)
    assert {each.kind for each in found.findings} - {"synchronizes"} == {"input"}


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("make", "name", "right", "wrong"), CASES, ids=lambda each: each if isinstance(each, str) else ""
)
def test_the_verdict_is_that_of_the_device(make, name, right, wrong):
    objects = make(name)
    foretold = [tm.rehearse(each, *objects).ok for each in (right, wrong)]
    tm.move(*objects[:2], to="cuda")
    assert [runs(each, *objects) for each in (right, wrong)] == foretold == [True, False]


def runs(go, *objects) -> bool:
    try:
        go(*objects)
    except RuntimeError as error:
        if "device" not in str(error) and "weight type (torch.cuda" not in str(error):
            raise
        return False
    return True


# ---------------------------------------------------------------- memory


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.head = (
            nn.Embedding(1000, 256),
            nn.LSTM(256, 512, 2, batch_first=True),
            nn.Linear(512, 1000),
        )

    def forward(self, words):
        return self.head(self.rnn(self.embed(words))[0])


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
        self.embed, self.body, self.head = (
            nn.Embedding(1000, 512),
            nn.TransformerEncoder(layer, 6),
            nn.Linear(512, 1000),
        )

    def forward(self, words):
        return self.head(self.body(self.embed(words)))


def language(model, optimizer, words, _):
    words = words.cuda()
    functional.cross_entropy(model(words).flatten(0, 1), words.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()


def images(model, optimizer, images, labels):
    functional.cross_entropy(model(images.cuda()), labels.cuda()).backward()
    optimizer.step()
    optimizer.zero_grad()


# A scale at which no gradient overflows: a scaler that skips the optimizer's first steps leaves it without a state.
# Made when this file is imported: on a machine without a GPU both are disabled, and a rehearsal takes them to be on.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    CONTEXT = torch.autocast("cuda", dtype=torch.bfloat16)
    HALF, SCALER = torch.autocast("cuda", dtype=torch.float16), torch.amp.GradScaler("cuda", init_scale=256.0)


def language_in_bfloat16(model, optimizer, words, _):
    words = words.cuda()
    with CONTEXT:
        loss = functional.cross_entropy(model(words).flatten(0, 1), words.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def images_scaled(model, optimizer, images, labels):
    with HALF:
        loss = functional.cross_entropy(model(images.cuda()), labels.cuda())
    SCALER.scale(loss).backward()
    SCALER.step(optimizer)
    SCALER.update()
    optimizer.zero_grad()


def resnet50():
    return pytest.importorskip("torchvision").models.resnet50()


MEMORY = {
    "transformer": (Layers, language, lambda: (torch.randint(0, 1000, (8, 256)), None)),
    "lstm": (Words, language, lambda: (torch.randint(0, 1000, (32, 128)), None)),
    "resnet50": (
        resnet50,
        images,
        lambda: (torch.randn(16, 3, 224, 224), torch.randint(0, 1000, (16,))),
    ),
    "transformer, autocast made outside": (
        Layers,
        language_in_bfloat16,
        lambda: (torch.randint(0, 1000, (8, 256)), None),
    ),
    "resnet50, autocast and scaler made outside": (
        resnet50,
        images_scaled,
        lambda: (torch.randn(16, 3, 224, 224), torch.randint(0, 1000, (16,))),
    ),
}


@pytest.mark.cuda
@pytest.mark.whole_card
@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("name", MEMORY)
def test_the_peak_is_that_of_the_device(name, optimizer_class, capsys):
    make, go, batch = MEMORY[name]
    model = make()
    optimizer, given = optimizer_class(model.parameters(), lr=0.01), batch()
    foretold = tm.rehearse(go, model, optimizer, *given).peak_bytes
    tm.move(model, optimizer, to="cuda")
    go(model, optimizer, *given)  # libraries take their workspaces
    before = torch.cuda.memory_allocated() - held_by(model, optimizer)
    torch.cuda.reset_peak_memory_stats()
    go(model, optimizer, *given)
    seen = torch.cuda.max_memory_allocated() - before
    with capsys.disabled():
        print(f"\n{name} {optimizer_class.__name__}: foretold {foretold >> 20} MiB, seen {seen >> 20} MiB", end=" ")
    assert abs(foretold / seen - 1) < 0.15


def held_by(model, optimizer) -> int:
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [value for state in optimizer.state.values() for value in state.values() if value.is_cuda]
    return sum(tensor.nbytes for tensor in tensors)
