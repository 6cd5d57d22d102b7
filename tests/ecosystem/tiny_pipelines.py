"""Pipelines of diffusers, tiny and without weights: one function for each family."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from diffusers import schedulers

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = {each: index for index, each in enumerate([*LETTERS, *(f"{letter}</w>" for letter in LETTERS)])}
WORDS |= {"<|startoftext|>": 52, "<|endoftext|>": 53}


def words() -> Any:
    """A tokenizer that knows the letters."""
    with tempfile.TemporaryDirectory() as folder:
        vocabulary, merges = Path(folder) / "vocab.json", Path(folder) / "merges.txt"
        vocabulary.write_text(json.dumps(WORDS))
        merges.write_text("#version: 0.2\n")
        return transformers.CLIPTokenizer(str(vocabulary), str(merges), model_max_length=77)


def clip(width: int = 32, **more: Any) -> Any:
    return transformers.CLIPTextConfig(
        bos_token_id=52,
        eos_token_id=53,
        pad_token_id=1,
        vocab_size=len(WORDS),
        hidden_size=width,
        intermediate_size=37,
        num_attention_heads=4,
        num_hidden_layers=2,
        **more,
    )


def t5() -> Any:
    return transformers.T5EncoderModel(
        transformers.T5Config(vocab_size=64, d_model=32, d_ff=37, d_kv=8, num_layers=2, num_heads=4)
    )


def unet(**more: Any) -> Any:
    named: dict[str, Any] = {
        "block_out_channels": (8, 16),
        "layers_per_block": 1,
        "sample_size": 8,
        "in_channels": 4,
        "out_channels": 4,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "cross_attention_dim": 32,
        "norm_num_groups": 4,
        "attention_head_dim": 4,
    }
    return diffusers.UNet2DConditionModel(**named | more)


def vae(channels: int = 4, **more: Any) -> Any:
    return diffusers.AutoencoderKL(
        block_out_channels=[8, 16],
        in_channels=3,
        out_channels=3,
        down_block_types=["DownEncoderBlock2D", "DownEncoderBlock2D"],
        up_block_types=["UpDecoderBlock2D", "UpDecoderBlock2D"],
        latent_channels=channels,
        norm_num_groups=4,
        sample_size=16,
        **more,
    )


Made = tuple[Any, dict[str, Any]]  # a pipeline, and what it is called with
CALLED = {"num_inference_steps": 2, "output_type": "np"}
PICTURE = {"height": 16, "width": 16, "guidance_scale": 2.0, **CALLED}


def unconditional() -> Made:
    model = diffusers.UNet2DModel(
        block_out_channels=(4, 8),
        layers_per_block=1,
        norm_num_groups=4,
        sample_size=8,
        in_channels=3,
        out_channels=3,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
    )
    return diffusers.DDPMPipeline(model, schedulers.DDPMScheduler()), CALLED


def sound() -> Made:
    model = diffusers.UNet1DModel(
        block_out_channels=(32, 32, 64),
        extra_in_channels=64,
        sample_size=512,
        sample_rate=16_000,
        in_channels=2,
        out_channels=2,
        flip_sin_to_cos=True,
        use_timestep_embedding=False,
        time_embedding_type="fourier",
        mid_block_type="UNetMidBlock1D",
        down_block_types=("DownBlock1DNoSkip", "DownBlock1D", "AttnDownBlock1D"),
        up_block_types=("AttnUpBlock1D", "UpBlock1D", "UpBlock1DNoSkip"),
    )
    called = {"num_inference_steps": 2, "batch_size": 1, "audio_length_in_s": 4096 / 16_000}
    return diffusers.DanceDiffusionPipeline(model, schedulers.IPNDMScheduler()), called


def stable(scheduler: Any = schedulers.DDIMScheduler, **more: Any) -> Made:
    kind = diffusers.StableDiffusionControlNetPipeline if more else diffusers.StableDiffusionPipeline
    pipeline = kind(
        unet=unet(),
        vae=vae(),
        scheduler=scheduler(),
        text_encoder=transformers.CLIPTextModel(clip()),
        tokenizer=words(),
        safety_checker=None,
        feature_extractor=None,
        image_encoder=None,
        requires_safety_checker=False,
        **more,
    )
    return pipeline, {"prompt": "a cat", **PICTURE}


def stable_with_old_outputs() -> Made:
    pipeline, called = stable(lambda: schedulers.PNDMScheduler(skip_prk_steps=True, steps_offset=1))
    return pipeline, {**called, "num_inference_steps": 5}


def stable_with_a_solver() -> Made:
    return stable(schedulers.DPMSolverMultistepScheduler)


def stable_with_sigmas() -> Made:
    return stable(schedulers.EulerDiscreteScheduler)


def controlled() -> Made:
    net = diffusers.ControlNetModel(
        block_out_channels=(8, 16),
        layers_per_block=1,
        in_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        conditioning_embedding_out_channels=(4, 8),
        cross_attention_dim=32,
        norm_num_groups=4,
        attention_head_dim=4,
    )
    pipeline, called = stable(controlnet=net)
    return pipeline, {**called, "image": torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(3))}


def extra_large() -> Made:
    wide = unet(
        attention_head_dim=(2, 4),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        transformer_layers_per_block=(1, 2),
        projection_class_embeddings_input_dim=80,
        cross_attention_dim=64,
    )
    pipeline = diffusers.StableDiffusionXLPipeline(
        unet=wide,
        vae=vae(),
        scheduler=schedulers.EulerDiscreteScheduler(timestep_spacing="leading", steps_offset=1),
        text_encoder=transformers.CLIPTextModel(clip()),
        tokenizer=words(),
        text_encoder_2=transformers.CLIPTextModelWithProjection(clip(projection_dim=32)),
        tokenizer_2=words(),
        add_watermarker=False,
    )
    return pipeline, {"prompt": "a cat", **PICTURE}


def flux() -> Made:
    model = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=[4, 4, 8],
    )
    pipeline = diffusers.FluxPipeline(
        scheduler=schedulers.FlowMatchEulerDiscreteScheduler(),
        vae=vae(1, use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.06, scaling_factor=1.5),
        text_encoder=transformers.CLIPTextModel(clip(projection_dim=32)),
        tokenizer=words(),
        text_encoder_2=t5(),
        tokenizer_2=words(),
        transformer=model,
    )
    return pipeline, {"prompt": "a cat", "max_sequence_length": 16, **PICTURE, "height": 8, "width": 8}


def stable_three() -> Made:
    model = diffusers.SD3Transformer2DModel(
        sample_size=8,
        patch_size=1,
        in_channels=4,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=32,
        pooled_projection_dim=64,
        out_channels=4,
    )
    pipeline = diffusers.StableDiffusion3Pipeline(
        scheduler=schedulers.FlowMatchEulerDiscreteScheduler(),
        vae=vae(use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.06, scaling_factor=1.5),
        text_encoder=transformers.CLIPTextModelWithProjection(clip(projection_dim=32)),
        tokenizer=words(),
        text_encoder_2=transformers.CLIPTextModelWithProjection(clip(projection_dim=32)),
        tokenizer_2=words(),
        text_encoder_3=t5(),
        tokenizer_3=words(),
        transformer=model,
    )
    return pipeline, {"prompt": "a cat", "max_sequence_length": 16, **PICTURE}


def pixart() -> Made:
    model = diffusers.PixArtTransformer2DModel(
        sample_size=8,
        num_layers=2,
        patch_size=2,
        attention_head_dim=8,
        num_attention_heads=3,
        caption_channels=32,
        in_channels=4,
        cross_attention_dim=24,
        out_channels=8,
        attention_bias=True,
        activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000,
        norm_type="ada_norm_single",
        norm_elementwise_affine=False,
        norm_eps=1e-6,
    )
    pipeline = diffusers.PixArtAlphaPipeline(
        tokenizer=words(),
        text_encoder=t5(),
        vae=vae(),
        transformer=model,
        scheduler=schedulers.DPMSolverMultistepScheduler(),
    )
    return pipeline, {"prompt": "a cat", "max_sequence_length": 16, "use_resolution_binning": False, **PICTURE}


def dit() -> Made:
    model = diffusers.DiTTransformer2DModel(
        sample_size=8,
        num_layers=2,
        patch_size=4,
        attention_head_dim=8,
        num_attention_heads=2,
        in_channels=4,
        out_channels=8,
        attention_bias=True,
        activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000,
        norm_type="ada_norm_zero",
        norm_elementwise_affine=False,
    )
    pipeline = diffusers.DiTPipeline(model, vae(), schedulers.DDIMScheduler())
    return pipeline, {"class_labels": [1], "guidance_scale": 2.0, **CALLED}


def kandinsky() -> Made:
    wide = unet(
        down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        out_channels=8,
        addition_embed_type="image",
        encoder_hid_dim=32,
        encoder_hid_dim_type="image_proj",
        class_embed_type=None,
        resnet_time_scale_shift="scale_shift",
    )
    movq = diffusers.VQModel(
        block_out_channels=[32, 64],
        down_block_types=["DownEncoderBlock2D", "AttnDownEncoderBlock2D"],
        in_channels=3,
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=8,
        norm_type="spatial",
        num_vq_embeddings=12,
        out_channels=3,
        up_block_types=["AttnUpDecoderBlock2D", "UpDecoderBlock2D"],
        vq_embed_dim=4,
    )
    scheduler = schedulers.DDIMScheduler(prediction_type="epsilon", clip_sample=False)
    pipeline = diffusers.KandinskyV22Pipeline(unet=wide, scheduler=scheduler, movq=movq)
    given = torch.randn(2, 1, 32, generator=torch.Generator().manual_seed(3))
    return pipeline, {"image_embeds": given[0], "negative_image_embeds": given[1], **PICTURE, "height": 32, "width": 32}


def consistent() -> Made:
    model = unconditional()[0].unet
    return diffusers.ConsistencyModelPipeline(model, schedulers.CMStochasticIterativeScheduler()), CALLED


def latent_consistent() -> Made:
    pipeline, called = stable(schedulers.LCMScheduler)
    pipeline = diffusers.LatentConsistencyModelPipeline(
        **{name: part for name, part in pipeline.components.items() if name != "unet"},
        unet=unet(time_cond_proj_dim=8),
        requires_safety_checker=False,
    )
    return pipeline, called


PIPELINES: dict[str, Callable[[], Made]] = {
    each.__name__: each
    for each in (
        *(unconditional, sound, stable, stable_with_old_outputs, stable_with_a_solver, stable_with_sigmas, controlled),
        *(extra_large, flux, stable_three, pixart, dit, kandinsky, consistent, latent_consistent),
    )
}
