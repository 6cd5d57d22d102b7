"""The table of all codes: what each one means, and how to fix it.

To add a code, add one row here in numerical order, and run `python docs/codes.py`, which writes `docs/codes.md` from
this table. A code is never reused with another meaning.
"""

from __future__ import annotations

from typing import NamedTuple


class Code(NamedTuple):
    """What a code means, and its fix. Notes need no fix."""

    what: str
    remedy: str = ""


REFUSALS = {
    "R010": Code(
        "`to=` is not a device, is not available on this machine, or is `meta`",
        'pass an available device, `to="cuda"`; `to="auto"` picks the accelerator if there is one, else the CPU',
    ),
    "R011": Code(
        "`keep=` names an object or a path that is not part of the state",
        "`print(tm.survey(model, optimizer))` lists the paths",
    ),
    "R012": Code(
        "`mover=` is not a mover, or does not support this pair of devices",
        'pass `mover="auto"`',
    ),
    "R013": Code(
        "the state changed after the plan was made",
        "call `tm.plan` again, right before `tm.apply`",
    ),
    "R014": Code(
        "a `FakeTensorMode` is active: copies made under it have no bytes",
        "move outside of the `with FakeTensorMode():` block",
    ),
    "R015": Code(
        "`to=` is a dict of patterns, and none of them matches a tensor",
        "add a last pattern `'*'` for everything else",
    ),
    "R016": Code(
        "the plan was made with `assume=`, for a device that this machine need not have",
        "on a machine that has the device, plan without `assume=`",
    ),
    "R020": Code(
        "`DistributedDataParallel` or `DataParallel`: its gradient buckets or replicas would stay on the old device",
        "`model = tm.rewrap(model, optimizer, to=...)`; for `DataParallel`: `model = model.module`, move it and its "
        "optimizer, wrap it again",
    ),
    "R021": Code(
        "FSDP holds shards that cannot move now: the old `FullyShardedDataParallel`, `CPUOffloadPolicy`, or "
        "gradients accumulated without reduction",
        "shard with `fully_shard`; finish the training step first",
    ),
    "R022": Code(
        "a traced, scripted or frozen TorchScript program contains a tensor or a device as a constant, on a device "
        "that the state leaves; a program without such constants moves",
        "move the original module, then trace or script it again; in scripted code, `device=x.device` and registered "
        "buffers do not become constants",
    ),
    "R023": Code(
        "an exported program or an fx graph contains a device as a constant",
        "export or trace it again on the target, or `torch.export.passes.move_to_device_pass(program, device)`",
    ),
    "R024": Code(
        "hooks of accelerate or diffusers move this module's weights on every call",
        "`accelerate.hooks.remove_hook_from_submodules(model)`, or load it without `device_map`; for diffusers, the "
        "refusal names the call",
    ),
    "R025": Code(
        "a captured CUDA graph replays on the old memory addresses",
        "delete the graph, move, and capture it again",
    ),
    "R026": Code(
        "packed quantized parameters: torch gives no access to their bytes",
        "move the float model and quantize it on the target",
    ),
    "R027": Code(
        "`parametrize.cached()` is active: its cache would keep the old tensors",
        "move outside of the `with parametrize.cached():` block",
    ),
    "R028": Code(
        "FSDP has gathered a parameter: the full parameter is registered instead of the shard; `tm.move` and "
        "`tm.park` reshard by themselves",
        "`model.reshard()`",
    ),
    "R029": Code(
        "a paged bitsandbytes optimizer: its state is in managed memory, which the CUDA driver moves between host and "
        "device",
        "create the unpaged optimizer of the same kind, `optimizer.load_state_dict(paged.state_dict())`, and move it",
    ),
    "R030": Code(
        "a meta tensor has no bytes",
        "materialize it first: load the weights, or `model.to_empty(device=...)`",
    ),
    "R031": Code(
        "a tensor subclass without `__tensor_flatten__`, or a `ShardedTensor`",
        "`keep=` it, or move it with its own methods first",
    ),
    "R032": Code(
        "a stored tensor is the result of a computation whose graph can still run backward",
        "detach it where it is stored: `module.name = module.name.detach()`",
    ),
    "R033": Code(
        "a forward pass used a parameter, and its graph can still run backward",
        "delete the loss and the outputs (`del loss`), or call `backward()` first",
    ),
    "R034": Code(
        "a storage is smaller than its tensor: its memory was freed",
        "gather it first, or `keep=` it",
    ),
    "R035": Code(
        "a memory-mapped or shared `TensorDict`: after a move, writes to it would no longer reach its file or the "
        "other processes",
        "`td = td.clone()`, or `keep=` it",
    ),
    "R036": Code(
        "a forward in eval mode made bitsandbytes pack 4-bit weights for its CPU kernels",
        "`model.state_dict()` unpacks them in place",
    ),
    "R037": Code(
        "bitsandbytes weights are not quantized yet: only the first `.to()` of their module quantizes them",
        "call `model.to(device)` once; after that `tm.move` can move it",
    ),
    "R040": Code(
        "MPS does not support float64 and complex128",
        "convert first: `.float()`, `.to(torch.complex64)`",
    ),
    "R041": Code(
        "two tensors share memory, but one would move and the other would stay",
        "`keep=` both or neither, or `.clone()` one of them first",
    ),
    "R042": Code(
        "not enough memory on the target",
        "free memory there, or leave part of the state where it is with `keep=`",
    ),
    "R043": Code(
        "tensors of different dtypes share memory, and the target device has no storages",
        "`.clone()` one of them first",
    ),
    "R044": Code(
        "a dtype smaller than one byte, and the target device has no storages",
        "view it as bytes first: `.view(torch.uint8)`",
    ),
    "R045": Code(
        "two storages overlap in memory, at a distance that is not a multiple of the element size",
        "`.clone()` one of the tensors first",
    ),
    "R047": Code(
        "the state holds a bare storage (`UntypedStorage`, `TypedStorage`): it cannot be rebound to its copy, as a "
        "tensor can",
        "store a tensor on that storage instead, or `keep=` it",
    ),
    "R048": Code(
        "FSDP2 or tensor-parallel shards would move to an accelerator that their device mesh is not on: mesh, process "
        "group and buffers stay",
        "create the mesh on the target, `fully_shard` a new model on it, and load the state into it with "
        "`torch.distributed.checkpoint.state_dict`",
    ),
    "R049": Code(
        "a tensor that would get another dtype or memory format shares memory with one that would not, or is inside a "
        "composite tensor",
        "`keep=` it, or convert it before the move",
    ),
    "R050": Code(
        "ranks that hold parts of one state made different calls, or passed different objects",
        "make the same call, with the same objects, on every rank",
    ),
}

# Refusals of checkpoint files.
FILES = {
    "R060": Code(
        "`to=` is not a device, or is one without storages (`meta`, `xla`)",
        "pass a device that a checkpoint can be saved from: `cpu`, `cuda:0`",
    ),
    "R061": Code(
        "the file cannot be read, or the result cannot be written: it does not exist, permission is denied, the disk "
        "is full, or it is not a regular file",
        "check the path, its permissions and the free space on the disk",
    ),
    "R062": Code(
        "not a checkpoint: another kind of file, which the message names (a Git LFS pointer, a web page, a GGUF file), "
        "an empty file, or a folder that contains no checkpoint or several",
        "pass a file written by `torch.save`, a `.safetensors` file, or an index; `git lfs pull`, or download it again",
    ),
    "R063": Code(
        "another file format of torch: `torch.save` before 1.6, a TorchScript or exported program, a package, or a "
        "folder of `torch.distributed.checkpoint`",
        "load it with torch's function for that format (`torch.jit.load(..., map_location=)`), and `torch.save` its "
        "state_dict",
    ),
    "R064": Code(
        "the file needs more than weights-only loading allows: a class or function, which the message names, or a "
        "newer pickle protocol",
        "save a state_dict instead; if you trust the file, `torch.serialization.add_safe_globals([...])`",
    ),
    "R065": Code(
        "the file is damaged: truncated, a wrong checksum, records that overlap, are compressed or point elsewhere, "
        "an inconsistent pickle or header",
        "download or copy the file again",
    ),
    "R066": Code(
        "a tensor refers to bytes that do not exist: more elements than its storage has, offsets that overlap or do "
        "not fit",
        "download or copy the file again, and do not load this one",
    ),
    "R067": Code(
        "the file asks for implausible amounts of memory or nesting, or for far more work than its size explains",
        "do not load it, unless you know who made it and why",
    ),
    "R068": Code(
        "an index names a path outside of its folder, or a file or a tensor that does not exist",
        "download the index and its files again, into one folder",
    ),
    "R069": Code(
        "the path of the result or the page is taken: by the input, a file, a folder, a link, a pipe or a device",
        "pass another path; to replace a regular file, `overwrite=True`, on the command line `--overwrite`",
    ),
    "R070": Code(
        "nothing to relocate: a safetensors file records no device and loads on any",
        "use the file as it is",
    ),
    "R071": Code(
        "`torch.load(..., weights_only=True)` cannot load it, or loads something other than what was read",
        "load it where it was saved, and save a state_dict",
    ),
    "R072": Code(
        "what was written differs from what was read, or the original changed meanwhile",
        "try again while no other process writes to it; if it happens again, check the disk and the memory",
    ),
    "R073": Code(
        "the name of the result does not match its kind: a folder named like a file, or a file of `torch.save` named "
        "`.safetensors`, `.json` or like a folder",
        "name a file with `.pt`, and a folder without an extension",
    ),
}

NOTES = {
    "N020": Code(
        "modules in a plain list, tuple or dict: they move, but `model.parameters()` does not list their parameters"
    ),
    "N021": Code("a tensor on a class cannot be moved and stays"),
    "N022": Code("a compiled module: its first call after the move compiles again"),
    "N030": Code("the entries of an `lru_cache` belong to the state and move"),
    "N031": Code(
        "datasets, data loaders, samplers and Lightning data modules are data, not state: torchmove does not search "
        "them, nor the datasets of a transformers `Trainer`, even if they are plain lists",
    ),
    "N032": Code("a `torch.Generator` cannot move"),
    "N033": Code("the entries of an `lru_cache` on a class cannot be moved: clear the cache, or they stay"),
    "N040": Code("a remembered device in an object that cannot be changed, such as a tuple"),
    "N041": Code(
        "a device without storages (XLA, torch's lazy device): tied weights stay tied there; strides, views and "
        "expanded tensors are lost on the way back",
    ),
    "N042": Code("memory that other processes share: they keep the old memory, and do not see later writes"),
    "N048": Code(
        "FSDP2 or tensor-parallel shards move to the CPU, away from the device type of their mesh: move them back "
        "before the next forward",
    ),
    "N050": Code(
        "part of the parked state is in ordinary (pageable) memory, which is slower: pinning failed, or `host_bytes=` "
        "is too small",
    ),
    "N060": Code(
        "a module replaced its tensors in its own `_apply`, as it does in `Module.to`: the move kept its changes"
    ),
    "N061": Code(
        "a stored result of a computation whose backward has run: it moves as data, and loses its graph on devices "
        "where torch does not allow `.data =`",
    ),
    "N063": Code(
        "a simulated first step could not show where an optimizer of this class keeps its scalars: `step` goes to the "
        "CPU, all others to the device of their parameters; `tm.register_rule` overrides this",
    ),
    "N064": Code(
        "`dtype=` casts parameters, but not the state that an optimizer keeps for them, which most steps "
        "refuse; `cast_optimizer=True` casts it too",
    ),
    "N070": Code(
        "an optimizer, a moving average or a gradient scaler of the state was not given, and has tensors that are left "
        "on another device: give it too; to leave it there on purpose, give it and `keep=` it",
    ),
}

FINDINGS = {
    "V101": Code(
        "the bytes of a tensor changed",
        "find the code that wrote to it during or after the move, such as a training step",
    ),
    "V201": Code(
        "tensors that shared a storage no longer do",
        "find the code that replaced one of them during or after the move",
    ),
    "V202": Code(
        "tensors overlap in memory that did not before",
        "find the code that replaced one of them during or after the move",
    ),
    "V301": Code(
        "a tensor is no longer part of the state",
        "find the code that removed it during or after the move",
    ),
    "V302": Code(
        "a tensor is part of the state that was not before",
        "find the code that added it during or after the move",
    ),
    "V303": Code(
        "an optimizer does not train the model: its parameters stayed behind and belong to no given module, "
        "or a module replaced some in its own `_apply`",
        "create the optimizer again from `model.parameters()`; instead of `.to()`, move both: "
        "`tm.move(model, optimizer, to=...)`",
    ),
    "V401": Code(
        "a tensor is on the wrong device",
        "`tm.move` moves it; register a plain attribute of a module with `register_buffer`",
    ),
    "V402": Code(
        "dtype, shape, stride or requires_grad changed",
        "find the code that replaced the tensor during or after the move",
    ),
    "V403": Code(
        "a module remembers a device that it is not on",
        "read the device from a parameter instead: `next(model.parameters()).device`",
    ),
}
