"""Every code: what it says and what to do about it. `docs/codes.md` is written from here, by `python docs/codes.py`.

A new code is one row here, in the order of the numbers, and `make docs` or that script. No code is ever used again for
something else.
"""

from __future__ import annotations

from typing import NamedTuple


class Code(NamedTuple):
    """What stands in the way, is worth knowing or was found; and what to do, where there is something to do."""

    what: str
    remedy: str = ""


REFUSALS = {
    "R010": Code(
        "`to=` is no device, or one that this machine does not have, or `meta`",
        'name a device that is there; `to="auto"` takes the accelerator if there is one',
    ),
    "R011": Code(
        "`keep=` names something that is not part of the state",
        "`print(tm.survey(...))` shows the paths",
    ),
    "R012": Code(
        "`mover=` is not a mover, or not one for this route",
        '`mover="auto"`',
    ),
    "R013": Code(
        "the state has changed since the plan was made",
        "plan again, right before applying",
    ),
    "R014": Code(
        "a `FakeTensorMode` is on: what is copied under it has no bytes",
        "move outside of its block",
    ),
    "R020": Code(
        "`DistributedDataParallel` or `DataParallel`: its buckets and replicas stay behind",
        "`model = tm.rewrap(model, optimizer, to=...)`; of DataParallel: `model = wrapper.module`, move it and its "
        "optimizer, wrap it again",
    ),
    "R021": Code(
        "FSDP holds shards that cannot move now: the old `FullyShardedDataParallel`, `CPUOffloadPolicy`, "
        "gradients accumulated without reduction",
        "shard with `fully_shard`; finish the step first",
    ),
    "R022": Code(
        "a traced, scripted or frozen TorchScript program has a tensor or a device baked in, which the state would "
        "leave; one without moves",
        "move the module it was made from and trace or script that again; scripted, `device=x.device` and registered "
        "buffers are not baked in",
    ),
    "R023": Code(
        "an exported program or a graph has a device baked in",
        "export or trace again on the target, or `torch.export.passes.move_to_device_pass`",
    ),
    "R024": Code(
        "hooks of accelerate or diffusers move this module's weights on every call",
        "`remove_hook_from_submodules(model)`, or load it without `device_map`; the refusal names diffusers' own",
    ),
    "R025": Code(
        "a captured CUDA graph replays on the old addresses",
        "delete it, move, capture again",
    ),
    "R026": Code(
        "packed quantised parameters: their bytes are out of reach",
        "move the float model and quantise it on the target",
    ),
    "R027": Code(
        "parametrized tensors are being cached",
        "move outside of `with parametrize.cached():`",
    ),
    "R028": Code(
        "FSDP has gathered a parameter: the whole is registered, not the shard; `tm.move` and `tm.park` reshard "
        "by themselves",
        "`model.reshard()`",
    ),
    "R029": Code(
        "a paged optimizer of bitsandbytes: its state is in memory that the driver takes to and fro by itself",
        "load its `state_dict()` into the optimizer of the same kind that is not paged, and move that",
    ),
    "R030": Code(
        "a meta tensor has no bytes",
        "materialise it first: load the weights, or `to_empty()`",
    ),
    "R031": Code(
        "a tensor subclass that does not say what is inside it, or a `ShardedTensor`",
        "keep it, or move it by its own means before",
    ),
    "R032": Code(
        "a tensor of the state is the result of a computation whose graph can still run backward",
        "detach it where it is stored",
    ),
    "R033": Code(
        "a forward pass has used a parameter and its graph can still run backward",
        "drop the loss and the outputs, or `backward()` first",
    ),
    "R034": Code(
        "a storage is smaller than what its tensor shows: its memory was taken away",
        "gather it first, or keep it",
    ),
    "R035": Code(
        "a memory-mapped or shared `TensorDict`: a file, or other processes, would no longer see what is written to it",
        "`td = td.clone()`, or keep it",
    ),
    "R036": Code(
        "bitsandbytes has packed 4-bit weights for the CPU's kernels, in a forward in eval mode",
        "`model.state_dict()` unpacks them, in place",
    ),
    "R037": Code(
        "bitsandbytes' weights are not quantised yet: their first `.to()` does that, and a move is none",
        "`model.to(device)`, once",
    ),
    "R040": Code(
        "MPS has no float64 and no complex128",
        "convert first: `.float()`",
    ),
    "R041": Code(
        "two tensors share memory, but one moves and the other stays",
        "keep both or neither, or clone one first",
    ),
    "R042": Code(
        "not enough memory on the target",
        "free some there, or `keep=` some of the state where it is",
    ),
    "R043": Code(
        "tensors of different dtypes share memory, and the target has no storages",
        "clone one of them first",
    ),
    "R044": Code(
        "a dtype of less than a byte, and the target has no storages",
        "view it as bytes first: `.view(torch.uint8)`",
    ),
    "R045": Code(
        "a storage begins within memory that another one shows, but not at a whole element of its tensor",
        "clone one of them first",
    ),
    "R047": Code(
        "a storage (`UntypedStorage`, `TypedStorage`) is held as such: no tensor leads from it to its copy",
        "hold a tensor on it instead, or `keep=` it",
    ),
    "R048": Code(
        "FSDP2 or tensor-parallel shards would go to an accelerator that their device mesh is not on: mesh, process "
        "group and buffers stay",
        "make the mesh on the target, `fully_shard` a new model on it, and take the state there by "
        "`torch.distributed.checkpoint.state_dict`",
    ),
    "R050": Code(
        "the ranks that hold parts of one state make different calls, or call with different objects",
        "make the same call, with the same objects, on every rank",
    ),
}

# Of checkpoint files.
FILES = {
    "R060": Code(
        "`to=` is no device, or one without storages (`meta`, `xla`)",
        "name one that a checkpoint can be saved from: `cpu`, `cuda:0`",
    ),
    "R061": Code(
        "the file cannot be read, or the result not written: missing, no permission, no room, not an ordinary file",
        "look at the path, its permissions and the room on the disk",
    ),
    "R062": Code(
        "not a checkpoint: another kind of file, which is named (a Git LFS pointer, a web page, a GGUF, ...), an "
        "empty one, a folder without one or with several",
        "name a file of `torch.save`, a `.safetensors` file, or an index; `git lfs pull`, or download it again",
    ),
    "R063": Code(
        "another kind of file of torch's: of `torch.save` before 1.6, a TorchScript or exported program, a package, a "
        "folder of `torch.distributed.checkpoint`",
        "load it with torch's function for it (`torch.jit.load(..., map_location=)`), and `torch.save` its state_dict",
    ),
    "R064": Code(
        "it needs more than weights-only loading allows: a class or function, which is named, or a newer "
        "pickle protocol",
        "save a state_dict; or, if you trust the file, `torch.serialization.add_safe_globals`",
    ),
    "R065": Code(
        "it is not as it was written: cut short, a wrong checksum, records that overlap, are compressed or "
        "lead elsewhere, a pickle or header that does not hold together",
        "get the file again",
    ),
    "R066": Code(
        "a tensor claims what is not there: more elements than its storage has, offsets that overlap or do not fit",
        "get the file again, and do not load this one",
    ),
    "R067": Code(
        "it asks for absurd amounts of memory or depth, or for far more work than a checkpoint of its size",
        "do not load it, unless you know who made it and why",
    ),
    "R068": Code(
        "an index leads out of its folder, or names a file or a tensor that is not there",
        "get the index and its files again, into one folder",
    ),
    "R069": Code(
        "the place of the result or the page is taken: by what is read, a file, a folder, a link, a pipe, a device",
        "name another place; an ordinary file is replaced by a file with `overwrite=True`, on the command line "
        "`--overwrite`",
    ),
    "R070": Code(
        "nothing to relocate: all of it is there already, or it is a safetensors file, which names no device "
        "and loads on any",
        "use it as it is",
    ),
    "R071": Code(
        "torch itself does not load it weights-only, or loads something else than was read",
        "load it where it was saved, and save a state_dict",
    ),
    "R072": Code(
        "what was written is not what was read, or the original changed meanwhile",
        "try again while nobody writes to it; if it stays so, the disk or memory is faulty",
    ),
    "R073": Code(
        "the name of the result does not fit: a folder with the name of a file, a file of `torch.save` named "
        "`.safetensors`, `.json` or as a folder",
        "name a file, `.pt` say; or for a folder a folder",
    ),
}

NOTES = {
    "N020": Code("modules in a plain list, tuple or dict: they move, but no optimizer sees their parameters"),
    "N021": Code("a tensor on a class is out of reach and stays"),
    "N022": Code("a compiled module: its first call after the move compiles again"),
    "N030": Code("the entries of an `lru_cache` belong to the state and move"),
    "N031": Code(
        "datasets, loaders, samplers and Lightning's data modules are data, not state: they are not entered; nor is "
        "what a `Trainer` of transformers has as its dataset, a plain list too",
    ),
    "N032": Code("a `torch.Generator` cannot move"),
    "N033": Code("an `lru_cache` on a class is out of reach: clear it, or its entries stay"),
    "N040": Code("a remembered device in a place that cannot be changed (a tuple, say)"),
    "N041": Code(
        "a device without storages (XLA, torch's lazy device): ties are kept there; strides, views and expanded "
        "tensors are not seen on the way back",
    ),
    "N042": Code("memory that other processes share: they keep what was there, and do not see what is written after"),
    "N048": Code(
        "FSDP2 or tensor-parallel shards leave the kind of device that their mesh is on, for the CPU: they go back "
        "before the next forward",
    ),
    "N050": Code(
        "some of a parked state is in ordinary memory, which is slower: page-locking was refused, or "
        "`host_bytes=` is not enough",
    ),
    "N060": Code(
        "a module changed what it holds in its own `_apply`, as it does in `Module.to`: adopted, on the target"
    ),
    "N061": Code(
        "a stored result of a computation whose backward has run: it moves as data, and where `.data =` is not allowed "
        "it comes without its spent graph",
    ),
    "N063": Code(
        "where an optimizer of this class keeps its scalars could not be learned from a first step: `step` goes to the "
        "CPU, all others beside their parameters; `tm.register_rule` says where they belong",
    ),
}

FINDINGS = {
    "V101": Code(
        "the bytes of a tensor are not what they were",
        "something wrote to it, during the move or since (a training step, say): find out what",
    ),
    "V201": Code(
        "tensors that shared a storage no longer do",
        "as V101",
    ),
    "V202": Code(
        "tensors overlap that did not before",
        "as V101",
    ),
    "V301": Code(
        "a tensor is no longer part of the state",
        "as V101",
    ),
    "V302": Code(
        "a tensor is part of the state that was not before",
        "as V101",
    ),
    "V303": Code(
        "an optimizer does not train the model: all of its parameters stayed behind and belong to no given module, "
        "or a module replaced some in its own `_apply`",
        "make the optimizer after the move, or move with `tm.move`",
    ),
    "V401": Code(
        "a tensor is not where it should be",
        "`tm.move` moves it; a plain attribute of a module wants `register_buffer`",
    ),
    "V402": Code(
        "dtype, shape, stride or requires_grad changed",
        "as V101",
    ),
    "V403": Code(
        "a module remembers a device that it is not on",
        "ask a parameter for its device instead",
    ),
}
