"""Checkpoint files that ask for more work than their size is worth, each of about as many bytes as one likes."""

from __future__ import annotations

import itertools
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from struct import pack

import forged
from forged import archive, call, entry, name, pickled, safetensors, tensor, text, torch_file, tuple_of

START = pickle.EMPTY_LIST + pickle.MARK  # a list of all that follows, up to END
END = pickle.APPENDS


def put(index: int) -> bytes:
    return pickle.BINPUT + bytes([index])


def get(index: int) -> bytes:
    return pickle.BINGET + bytes([index])


def whole(value: int) -> bytes:
    return pickle.BININT + pack("<i", value)


def long(value: int) -> bytes:
    return pickle.LONG1 + pack("<B", 9) + value.to_bytes(9, "little", signed=True)


def number(value: float) -> bytes:
    return pickle.BINFLOAT + pack(">d", value)


def dict_of(*pairs: bytes) -> bytes:
    return pickle.EMPTY_DICT + pickle.MARK + b"".join(pairs) + pickle.SETITEMS


def repeated(nbytes: int, step: bytes, *before: bytes) -> bytes:
    """What is before, and a step again and again."""
    begin = START + b"".join(before)
    return begin + step * ((nbytes - len(begin)) // len(step)) + END


# ---------------------------------------------------------------- one thing under many names


def shared_state(nbytes: int) -> bytes:
    """Half of it is one optimizer's state, and half dicts that share it."""
    kinds = nbytes // 2 // 12
    state = dict_of(*(whole(index) + dict_of(text(f"{index:x}") + pickle.NONE) for index in range(kinds // 3)))
    groups = pickle.EMPTY_LIST + dict_of(text("params") + pickle.EMPTY_LIST) + pickle.APPEND
    remembered = (state + put(1), groups + put(2), text("state") + put(3), text("param_groups") + put(4))
    return repeated(nbytes, dict_of(get(3), get(1), get(4), get(2)), *remembered)


def shared_groups(nbytes: int) -> bytes:
    group = dict_of(text("params") + pickle.EMPTY_LIST) + put(0)
    groups = pickle.EMPTY_LIST + pickle.MARK + group + get(0) * (nbytes // 4) + END
    remembered = (groups + put(2), text("state") + put(3), text("param_groups") + put(4))
    return repeated(nbytes, dict_of(get(3), pickle.EMPTY_DICT, get(4), get(2)), *remembered)


def shared_inner_state(nbytes: int) -> bytes:
    inner = dict_of(*(text(f"{index:x}") + pickle.NONE for index in range(nbytes // 16)))
    remembered = (inner + put(1), text("state") + put(3), text("param_groups") + put(4))
    one = dict_of(get(3), dict_of(whole(0), get(1)), get(4), pickle.EMPTY_LIST)
    return repeated(nbytes, one, *remembered)


def tensor_by_many_names(nbytes: int) -> bytes:
    return repeated(nbytes, get(1), tensor() + put(1))


def storage_by_many_names(nbytes: int) -> bytes:
    return repeated(nbytes, get(1), forged.storage() + put(1))


def device_by_many_names(nbytes: int) -> bytes:
    return repeated(nbytes, get(1), call("torch.device", text("cuda")) + put(1))


def many_tensors_from_one_call(nbytes: int) -> bytes:
    rebuild, rest = tensor()[:-1].split(b"\n", 2)[:2], tensor()[:-1].split(b"\n", 2)[2]
    return repeated(nbytes, get(1) + get(2) + pickle.REDUCE, b"\n".join(rebuild) + b"\n" + put(1), rest + put(2))


def long_path_to_many_tensors(nbytes: int) -> bytes:
    rebuild, rest = tensor()[:-1].split(b"\n", 2)[:2], tensor()[:-1].split(b"\n", 2)[2]
    within = repeated(
        nbytes - 4100, get(1) + get(2) + pickle.REDUCE, b"\n".join(rebuild) + b"\n" + put(1), rest + put(2)
    )
    return pickle.EMPTY_DICT + text("a" * 4000) + within + pickle.SETITEM


def long_text_again(nbytes: int) -> bytes:
    return repeated(nbytes, get(1), text("a" * (nbytes // 2)) + put(1))


def long_key_again(nbytes: int) -> bytes:
    one = pickle.EMPTY_DICT + get(1) + pickle.NONE + pickle.SETITEM
    return repeated(nbytes, one, text("a" * min(15_000, nbytes // 2)) + put(1))


def large_key_again(nbytes: int) -> bytes:
    """Tuples that share nearly all that is in them."""
    shared = tuple_of(*(whole(index) for index in range(900))) + put(1)
    pairs = (get(1) + whole(index) + pickle.TUPLE2 + pickle.NONE for index in range((nbytes - 5000) // 9))
    return START + shared + dict_of(*pairs) + END


def long_text_for_a_place(nbytes: int) -> bytes:
    identity = tuple_of(text("storage"), name("torch.FloatStorage"), text(LONG_KEY), text("cpu"), whole(0))
    return repeated(nbytes, get(1) + pickle.BINPERSID, identity + put(1))


def laughs(nbytes: int) -> bytes:
    """Ten of ten of ten of the one before."""
    return repeated(nbytes, pickle.MARK + get(1) * 10 + pickle.TUPLE + put(1), pickle.EMPTY_LIST + put(1))


# ---------------------------------------------------------------- one call again and again


def again(full: str, *arguments: bytes) -> Callable[[int], bytes]:
    def make(nbytes: int) -> bytes:
        given = b"".join(arguments) or long_list(nbytes // 2)
        step = get(1) + get(2) + pickle.REDUCE
        return repeated(nbytes, step, name(full) + put(1), pickle.MARK + given + pickle.TUPLE + put(2))

    return make


def long_list(nbytes: int) -> bytes:
    return pickle.EMPTY_LIST + pickle.MARK + (pickle.BININT1 + b"\1") * (nbytes // 2) + pickle.APPENDS


def ordered_dict_of_a_dict(nbytes: int) -> bytes:
    pairs = (whole(index) + pickle.NONE for index in range(nbytes // 12))
    return again("collections.OrderedDict", dict_of(*pairs))(nbytes)


def encoded_again(nbytes: int) -> bytes:
    return again("_codecs.encode", text("a" * (nbytes // 2)), text("latin1"))(nbytes)


def bytearray_again(nbytes: int) -> bytes:
    inside = call("_codecs.encode", text("a" * (nbytes // 2)), text("latin1"))
    return again("builtins.bytearray", inside)(nbytes)


def built_again(nbytes: int) -> bytes:
    state = dict_of(*(text(f"{index:x}") + pickle.NONE for index in range(nbytes // 24)))
    before = (state + put(1), call("collections.OrderedDict"))
    return repeated(nbytes, get(1) + pickle.BUILD, *before)


def parameters_of_parameters(nbytes: int) -> bytes:
    """Each is made from the one before, and says so."""
    step = put(2) + b"".join((get(1), get(2), pickle.NEWFALSE, get(3), pickle.TUPLE3, pickle.REDUCE))
    before = (name("torch._utils._rebuild_parameter") + put(1), call("collections.OrderedDict") + put(3), tensor())
    return repeated(nbytes, step, *before)


# ---------------------------------------------------------------- keys


def keys(make: Callable[[int], bytes], each: int) -> Callable[[int], bytes]:
    return lambda nbytes: dict_of(*(make(index) + pickle.NONE for index in range(nbytes // each)))


def tuples_of_ones_and_twos(nbytes: int) -> bytes:
    """hash(-1) is hash(-2)."""
    bits = max(4, (nbytes // 40).bit_length())
    given = itertools.islice(itertools.product((1, 2), repeat=bits), nbytes // (2 * bits + 3))
    pairs = (pickle.MARK + b"".join(map(get, each)) + pickle.TUPLE + pickle.NONE for each in given)
    return START + whole(-1) + put(1) + whole(-2) + put(2) + dict_of(*pairs) + END


def complex_number(index: int) -> bytes:
    """hash(a + bj) is hash(a) + 1000003 * hash(b), in 64 bits."""
    return call("builtins.complex", number(-1000003.0 * index), number(float(index)))


MODULUS = (1 << 61) - 1  # whole numbers hash to themselves, modulo this


def set_of_colliding(nbytes: int) -> bytes:
    members = pickle.EMPTY_LIST + pickle.MARK + b"".join(wide(index) for index in range(nbytes // 24)) + END
    return call("builtins.set", members)


def wide(index: int) -> bytes:
    raw = (7 + index * MODULUS).to_bytes(16, "little", signed=True)
    return pickle.LONG1 + pack("<B", 16) + raw


def in_each_others_way(index: int) -> bytes:
    """The first half fills places one behind the other, in the order in which dict tries them; the rest begin there."""
    return long(index * ((1 << 40) + 1) % (1 << 59))


def in_a_run(nbytes: int) -> list[int]:
    """Half of these numbers are places behind each other, in the order in which dict tries them. The others begin among
    them, and are chosen to stay there: each has to go through many of the first."""
    size = 1 << (nbytes // 14).bit_length()
    run, at = set(), 1
    while len(run) < size // 3:
        run.add(at)
        at = (at * 5 + 1) % size
    others = (number for number in range(size, 1 << 30) if _tried(number, run, size) > size // 8)
    return [*sorted(run), *itertools.islice(others, size // 3)]


def _tried(hashed: int, taken: set[int], size: int) -> int:
    at, perturb, tried = hashed % size, hashed, 0
    while at in taken and tried <= size // 8:
        perturb >>= 5
        at = (at * 5 + perturb + 1) % size
        tried += 1
    return tried


def keys_in_a_run(nbytes: int) -> bytes:
    return dict_of(*(long(key) + pickle.NONE for key in in_a_run(nbytes)))


def memo_in_a_run(nbytes: int) -> bytes:
    return pickle.NONE + b"".join(pickle.LONG_BINPUT + pack("<I", index) for index in in_a_run(nbytes))


def tensor_keys(nbytes: int) -> bytes:
    """To find one, all before it are gone through."""
    rebuild, rest = tensor()[:-1].split(b"\n", 2)[:2], tensor()[:-1].split(b"\n", 2)[2]
    one = get(1) + get(2) + pickle.REDUCE
    pairs = (one + one for _ in range(nbytes // 10))
    return START + b"\n".join(rebuild) + b"\n" + put(1) + rest + put(2) + dict_of(*pairs) + END


# ---------------------------------------------------------------- many small things


def steps(step: bytes, *before: bytes) -> Callable[[int], bytes]:
    return lambda nbytes: repeated(nbytes, step, *before)


def strides_that_hash_alike(nbytes: int) -> bytes:
    """Of dimensions of size 1, where no stride is wrong."""
    dimensions = max(4, (nbytes // 60).bit_length())
    hooks = call("collections.OrderedDict") + put(5)
    ones = tuple_of(*(whole(1) for _ in range(dimensions))) + put(4)
    remembered = (name("torch._utils._rebuild_tensor_v2") + put(1), forged.storage() + put(2), ones, hooks)
    strides = (long(7) + put(6), long(7 + MODULUS) + put(7))
    made = b"".join(
        get(1)
        + tuple_of(get(2), whole(0), get(4), tuple_of(*(get(6 + bit) for bit in bits)), pickle.NEWFALSE, get(5))
        + pickle.REDUCE
        for bits in itertools.islice(itertools.product((0, 1), repeat=dimensions), nbytes // (2 * dimensions + 30))
    )
    return START + b"".join((*remembered, *strides)) + made + END


LONG_KEY = "a" * 5_000
PAIR = tuple_of(whole(1), whole(2))
PICKLES: dict[str, Callable[[int], bytes]] = {
    "optimizers that share a state": shared_state,
    "optimizers that share groups": shared_groups,
    "optimizers that share what is in a state": shared_inner_state,
    "a tensor by many names": tensor_by_many_names,
    "a storage by many names": storage_by_many_names,
    "a device by many names": device_by_many_names,
    "many tensors from one call": many_tensors_from_one_call,
    "a long path to many tensors": long_path_to_many_tensors,
    "a long text again and again": long_text_again,
    "a long key again and again": long_key_again,
    "a large key again and again": large_key_again,
    "a long text for a storage's key": long_text_for_a_place,
    "ten of ten of ten": laughs,
    "OrderedDict of one list of pairs": again("collections.OrderedDict", START, PAIR * 300, END),
    "OrderedDict of one dict": ordered_dict_of_a_dict,
    "a set of one list": again("builtins.set"),
    "a size of one list": again("torch.Size"),
    "one text encoded": encoded_again,
    "one bytearray": bytearray_again,
    "a dict built again and again": built_again,
    "parameters of parameters": parameters_of_parameters,
    "tuples of -1 and -2": tuples_of_ones_and_twos,
    "complex numbers that hash alike": keys(complex_number, 60),
    "whole numbers that hash alike": keys(wide, 19),
    "a set of numbers that hash alike": set_of_colliding,
    "numbers with the same low bits": keys(in_each_others_way, 12),
    "keys in each other's way": keys_in_a_run,
    "a memo in its own way": memo_in_a_run,
    "tensors for keys": tensor_keys,
    "strides that hash alike": strides_that_hash_alike,
    "lists": steps(pickle.EMPTY_LIST),
    "dicts": steps(pickle.EMPTY_DICT),
    "sets": steps(pickle.EMPTY_SET),
    "tuples in tuples": steps(pickle.TUPLE1, pickle.EMPTY_TUPLE),
    "marks": lambda nbytes: pickle.MARK * nbytes + pickle.TUPLE * nbytes,
    "short texts": steps(text("")),
    "nothing": steps(pickle.NONE),
    "huge numbers": steps(get(1), pickle.LONG1 + b"\xff" + b"\x7f" * 255 + put(1)),
    "lists in lists": lambda nbytes: pickle.EMPTY_LIST * (nbytes // 2) + pickle.APPEND * (nbytes // 2 - 1),
    "OrderedDicts": steps(get(1) + pickle.EMPTY_TUPLE + pickle.REDUCE, name("collections.OrderedDict") + put(1)),
    "names": steps(name("torch.float32")),
}


def of_pickle(kind: str, path: Path, nbytes: int) -> Path:
    more = {f"data/{LONG_KEY}": b""} if kind == "a long text for a storage's key" else {}
    return torch_file(path, PICKLES[kind](nbytes), **more)


# ---------------------------------------------------------------- files of other kinds


def many_records(path: Path, nbytes: int) -> Path:
    return archive(path, {"data.pkl": pickled(pickle.NONE)} | {f"x{index}": b"" for index in range(nbytes // 100)})


def header(*members: str) -> bytes:
    return f"{{{','.join([*members, json.dumps({'a': entry()})[1:-1]])}}}".encode()


def metadata(inside: str) -> bytes:
    return header(f'"__metadata__":{inside}')


def many(each: str, count: int) -> str:
    """The same again and again, `#` being another number each time."""
    return ",".join(each.replace("#", f"{index:x}") for index in range(count))


EMPTY = '"x#":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
SAFETENSORS: dict[str, Callable[[int], bytes]] = {
    "brackets in the metadata": lambda nbytes: metadata('{"a":[' + many("[]", nbytes // 3) + "]}"),
    "deep brackets in the metadata": lambda nbytes: metadata("[" * (nbytes // 2) + "]" * (nbytes // 2)),
    "texts in the metadata": lambda nbytes: metadata("[" + many('"ab"', nbytes // 5) + "]"),
    "keys in the metadata": lambda nbytes: metadata("{" + many('"#":0', nbytes // 9) + "}"),
    "brackets for a tensor": lambda nbytes: header('"b":{"dtype":[' + many("[]", nbytes // 3) + "]}"),
    "keys for a tensor": lambda nbytes: header('"b":{' + many('"#":0', nbytes // 9) + "}"),
    "tensors that are numbers": lambda nbytes: header(many('"#":0', nbytes // 9)),
    "one huge size": lambda nbytes: header(EMPTY.replace("[0]", "[" + "9" * nbytes + "]")),
    "many sizes": lambda nbytes: header(EMPTY.replace("[0]", "[" + many("1", nbytes // 2) + "]")),
    "many tensors": lambda nbytes: header(many(EMPTY, nbytes // 56)),
    "large empty tensors": lambda nbytes: header(
        many(EMPTY.replace("[0]", "[0" + f",{1 << 62}" * 63 + "]"), nbytes // 1320)
    ),
}


def of_safetensors(kind: str, path: Path, nbytes: int) -> Path:
    return safetensors(path, SAFETENSORS[kind](nbytes), bytes(8))


INDICES: dict[str, Callable[[int], str]] = {
    "one file by many tensors": lambda nbytes: many('"#":"0.bin"', nbytes // 14),
    "many files": lambda nbytes: many('"#":"#.bin"', nbytes // 20),
    "one name again and again": lambda nbytes: many('"a":"0.bin"', nbytes // 12),
    "brackets": lambda nbytes: '"a":"0.bin"},"metadata":{"a":[' + many("[]", nbytes // 3) + "]",
}


def of_index(kind: str, folder: Path, nbytes: int) -> Path:
    folder.mkdir()
    (folder / "pytorch_model.bin.index.json").write_text('{"weight_map":{' + INDICES[kind](nbytes) + "}}")
    torch_file(folder / "0.bin", dict_of(text("a") + tensor()))
    return folder


def one_file_by_many_names(folder: Path, nbytes: int) -> Path:
    """Each name of it costs as much as a checkpoint of its size may."""
    forged.index(folder, {f"{index}": f"{index}.bin" for index in range(30)})
    names = (text(str(index)) + get(9) for index in range(30))
    file = torch_file(folder / "0.bin", dict_of(text("0") + tensor() + put(9), *names, text("x") + steps(OWN)(nbytes)))
    for index in range(1, 30):
        os.link(file, folder / f"{index}.bin")
    return folder


OWN = pickle.EMPTY_LIST + put(2)
