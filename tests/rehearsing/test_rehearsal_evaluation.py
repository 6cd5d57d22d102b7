"""What a user's own file sent before the step is on the device; what it forgot is on the CPU, and is found."""

from __future__ import annotations

import importlib.util
import sys
import time

import pytest
from test_corpus import no_accelerator

import torchmove as tm

HEAD = """import argparse
import collections
import copy
import functools
from types import SimpleNamespace
import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Linear(4, 4).to(device)
x0 = torch.ones(3, 4, device=device)
"""
STEP = """

def step():
    return net(x0) * {made}
"""
# Statements that leave `t`, or what the step reads of it, on the device; and others that leave it on the CPU.
SENT = {
    "a method of what was sent": ("t = x0.clone().detach()[0]", "t"),
    "new_zeros": ("t = x0.new_zeros(4)", "t"),
    "new_zeros of a parameter": ("p = next(net.parameters())\nt = p.new_zeros(4)", "t"),
    "zeros_like": ("t = torch.zeros_like(x0)", "t"),
    "the device of another": ("t = torch.ones(4, device=x0.device)", "t"),
    "the device of another by name": ("where = next(net.parameters()).device\nt = torch.ones(4).to(where)", "t"),
    "to another": ("t = torch.ones(4).to(x0)", "t"),
    "type_as": ("t = torch.ones(4).type_as(x0)", "t"),
    "a function of torch's": ("t = torch.cumsum(torch.ones(3, 4).to(device), 0)", "t"),
    "computed from it": ("t = 1.0 - x0 * 2", "t"),
    "a tuple from a function": ("def load():\n    return torch.ones(4).to(device), 1\nt, n = load()", "t"),
    "a dict from a function": ("def load():\n    return {'t': torch.ones(4).to(device)}\nt = load()", "t['t']"),
    "a map": ("t, u = map(lambda each: each.to(device), [torch.ones(4), torch.ones(4)])", "t * u"),
    "a lambda": ("to = lambda each: each.to(device)\nt = to(torch.ones(4))", "t"),
    "a comprehension": ("t = [each.to(device) for each in [torch.ones(4), torch.ones(4)]]", "t[0] * t[1]"),
    "written into a dict": ("t = {}\nt['w'] = torch.ones(4).to(device)", "t['w']"),
    "appended": ("t = []\nfor _ in range(2):\n    t.append(torch.ones(4).to(device))", "t[0] * t[1]"),
    "a namespace": ("t = SimpleNamespace()\nt.w = torch.ones(4).to(device)", "t.w"),
    "its data": ("t = torch.ones(4)\nt.data = t.data.to(device)", "t"),
    "a copy of a module": ("t = copy.deepcopy(net)", "t(x0)"),
    "modules in a loop": (
        "t, u = nn.Linear(4, 4), nn.Linear(4, 4)\nfor each in (t, u):\n    each.to(device)",
        "t(x0) * u(x0)",
    ),
    "a wrapper": ("inner = nn.Linear(4, 4).to(device)\nt = nn.DataParallel(inner)", "inner(x0)"),
    "wrapped under the same name": (
        "class Holds(nn.Module):\n    def __init__(self, inner):\n        super().__init__()\n"
        "        self.inner = inner\nt = nn.Linear(4, 4).to(device)\nt = Holds(t)",
        "t.inner(x0)",
    ),
    "changed by a function": (
        "def freeze(m):\n    m.requires_grad_(False)\n    return m\nt = nn.Linear(4, 4)\nt.to(device)\nt = freeze(t)",
        "t(x0)",
    ),
    "part by part": ("t = nn.Sequential()\nt.a = nn.Linear(4, 4)\nt.a.to(device)", "t.a(x0)"),
    "a part put in later, and sent": (
        "t = nn.Sequential().to(device)\nt.add_module('a', nn.Linear(4, 4).to(device))",
        "t.a(x0)",
    ),
    "a function over a comprehension": (
        "def half(y):\n    return y * 0.5\nt = [half(y) for y in (x0, x0)]",
        "t[0] * t[1]",
    ),
    "a dataset": (
        "from torch.utils.data import TensorDataset\nt = TensorDataset(torch.ones(3, 4).to(device))",
        "t[0][0]",
    ),
    "a loader": (
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "t = DataLoader(TensorDataset(torch.ones(3, 4).to(device)), batch_size=3)",
        "next(iter(t))[0]",
    ),
    "a dataset of its own class": (
        "from torch.utils.data import Dataset\nclass Rows(Dataset):\n    def __init__(self):\n"
        "        self.rows = torch.ones(3, 4).to(device)\n"
        "    def __getitem__(self, index):\n        return self.rows[index]\nt = Rows()",
        "t[0]",
    ),
    "by its own _apply": (
        "class Metric(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.sum = torch.ones(4)\n"
        "    def _apply(self, change, *rest):\n        super()._apply(change, *rest)\n"
        "        self.sum = change(self.sum)\n        return self\nt = Metric().to(device)",
        "t.sum",
    ),
    "a default device": ("torch.set_default_device(device)\nt = nn.Linear(4, 4)", "t(x0) * torch.ones(4)"),
    "a with statement": ("with torch.device(device):\n    t = nn.Linear(4, 4)", "t(x0)"),
    "by the class itself": (
        "class Own(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.inner = nn.Linear(4, 4)\n        self.to(device)\nt = Own()",
        "t.inner(x0)",
    ),
    "an object with a to of its own": (
        "class Batch:\n    def __init__(self):\n        self.a = torch.ones(4)\n"
        "    def to(self, where):\n        self.a = self.a.to(where)\n        return self\nt = Batch()\nt.to(device)",
        "t.a",
    ),
    "attributes of attributes": (
        "class Noise:\n    def __init__(self, where):\n        self.beta = torch.ones(4).to(where)\n"
        "        self.alpha = 1 - self.beta\nt = Noise(device)",
        "t.alpha",
    ),
    "sent by a function that returns nothing": (
        "def send(m, where):\n    m.to(where)\nt = nn.Linear(4, 4)\nsend(t, device)",
        "t(x0)",
    ),
    "sent by a function, with others": (
        "def send(*all):\n    for each in all:\n        each.to(device)\n"
        "t, u = nn.Linear(4, 4), nn.Linear(4, 4)\nsend(t, u)",
        "t(x0) * u(x0)",
    ),
    "a copy of what was sent by an assignment": (
        "t = nn.Linear(4, 4)\nsent = t.to(device)\nu = copy.deepcopy(t)",
        "u(x0)",
    ),
    "modules of a list in a loop": (
        "t = [nn.Linear(4, 4), nn.Linear(4, 4)]\nfor each in t:\n    each.to(device)",
        "t[0](x0) * t[1](x0)",
    ),
    "written into a dict by a variable": (
        "t = {}\nfor key in ('a', 'b'):\n    t[key] = torch.ones(4).to(device)",
        "t['a'] * t['b']",
    ),
    "sent under another name": ("u = torch.ones(4)\nt = u.to(device)", "t"),
    "an argument of its class": (
        "class Holder:\n    def __init__(self, inner):\n        self.inner = inner\n"
        "t = Holder(nn.Linear(4, 4).to(device))",
        "t.inner(x0)",
    ),
    "a module's to of its own": (
        "class Policy(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.inner, self.scale = nn.Linear(4, 4), torch.ones(4)\n"
        "    def to(self, where):\n        self.scale = self.scale.to(where)\n        return super().to(where)\n"
        "t = Policy().to(device)",
        "t.inner(x0) * t.scale",
    ),
    "parameters of its own": (
        "class Learner(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.weights = nn.ParameterList([torch.ones(4)])\n"
        "    def parameters(self):\n        return self.weights\n"
        "t = Learner().to(device)",
        "t.weights[0]",
    ),
    "a function that calls itself": (
        "def made(x, n):\n    if n:\n        return made(x, n - 1)\n    return torch.ones(4).to(x.device)\n"
        "t = made(x0, 2)",
        "t",
    ),
    "the attribute of a module in another": (
        "class Coupling(nn.Module):\n    def __init__(self, mask):\n        super().__init__()\n"
        "        self.scale, self.mask = nn.Linear(4, 4), mask\n"
        "    def forward(self, x):\n        return self.scale(x * self.mask)\n"
        "mask = (torch.arange(4) % 2).to(device)\nlayers = []\n"
        "for _ in range(2):\n    layers += [Coupling(mask)]\n    mask = 1 - mask\n"
        "t = nn.Sequential(*layers).to(device)",
        "t(x0)",
    ),
    "a function that goes into dicts by itself": (
        "def send(data, where):\n    if isinstance(data, dict):\n        sent = {}\n"
        "        for key, each in data.items():\n            sent[key] = send(each, where)\n        return sent\n"
        "    return data.to(where)\nt = send({'w': torch.ones(4)}, device)",
        "t['w']",
    ),
    "attributes set by name": (
        "class Solver:\n    def __init__(self, **networks):\n        for name, each in networks.items():\n"
        "            setattr(self, name, each.to(device))\nt = Solver(inner=nn.Linear(4, 4))",
        "t.inner(x0)",
    ),
    "attributes set in __dict__": (
        "class Solver:\n    def __init__(self, **networks):\n        for name, each in networks.items():\n"
        "            self.__dict__[name] = each.to(device)\nt = Solver(inner=nn.Linear(4, 4))",
        "t.inner(x0)",
    ),
    "clones that a method makes": (
        "class Average:\n    def __init__(self, model):\n        self.model, self.shadow = model, {}\n"
        "    def register(self):\n        for name, each in self.model.named_parameters():\n"
        "            self.shadow[name] = each.data.clone()\nt = Average(net)\nt.register()",
        "t.shadow['bias']",
    ),
    "clones that a helper of an object makes": (
        "class Average:\n    def __init__(self, model):\n"
        "        self.shadow = [each.clone().detach() for each in model.parameters()]\n"
        "class Trainer:\n    def __init__(self, model):\n        self.model = model.to(device)\n"
        "        self.average = Average(self.model)\nt = Trainer(nn.Linear(4, 4))",
        "t.average.shadow[1]",
    ),
    "a memory that is pushed to": (
        "class Memory:\n    def __init__(self):\n        self.rows = collections.deque(maxlen=3)\n"
        "    def push(self, *args):\n        self.rows.append(args)\n"
        "class Log:\n    def __init__(self):\n        self.rows = []\n"
        "    def push(self, row):\n        self.rows.append(row)\n"
        "t, log = Memory(), Log()\nt.push(torch.ones(4, device=device), 1)\nlog.push(torch.ones(4))",
        "t.rows[0][0]",
    ),
    "a list that a function fills": (
        "t = []\ndef keep(x, label):\n    t.append((x, label))\nkeep(torch.ones(4).to(device), 1)",
        "t[0][0]",
    ),
    "parts added before the whole is sent by a method": (
        "class Trainer:\n    def __init__(self):\n        self.model = nn.Sequential(nn.Linear(4, 4))\n"
        "        self.grow()\n        self.model.to(device)\n"
        "    def grow(self):\n        self.model.append(nn.Linear(4, 4))\nt = Trainer()",
        "t.model(x0)",
    ),
    "a partial with a tensor": ("t = functools.partial(torch.mul, torch.ones(4).to(device))", "t(x0)"),
    "a network of a module, before the variable is bound anew": (
        "where = device\nt = nn.Linear(4, 4).to(where)\nwhere = torch.device('cpu')",
        "t(x0)",
    ),
    "by a switch that is on": (
        "class Trainer:\n    def __init__(self, gpu=True):\n"
        "        self.where = torch.device('cuda' if gpu and torch.cuda.is_available() else 'cpu')\n"
        "        self.model = nn.Linear(4, 4).to(self.where)\nt = Trainer()",
        "t.model(x0)",
    ),
    "where an import has failed": (
        "t = nn.Linear(4, 4)\ntry:\n    import not_installed\nexcept ImportError:\n    t = t.to(device)",
        "t(x0)",
    ),
    "in the first round of a loop": (
        "use, t = torch.cuda.is_available(), nn.Linear(4, 4)\nfor at in range(2):\n    if use and at == 0:\n"
        "        t.cuda()",
        "t(x0)",
    ),
    "two names after the sending": (
        "class Fit:\n    def __init__(self, data):\n        data = data.to(device)\n"
        "        self.data, self.view = data, data\nt = Fit(torch.ones(4))",
        "t.data * t.view",
    ),
    "the values of a dict in a loop": (
        "t = {'a': nn.Linear(4, 4)}\nfor each in t.values():\n    each.to(device)",
        "t['a'](x0)",
    ),
    "the items of a dict in a loop": (
        "t = {'a': nn.Linear(4, 4)}\nfor name, each in t.items():\n    each.to(device)",
        "t['a'](x0)",
    ),
    "a comprehension whose result is dropped": (
        "t = [nn.Linear(4, 4)]\n[each.to(device) for each in list(t)]",
        "t[0](x0)",
    ),
    "the members of an attribute in a loop": (
        "class Own:\n    def __init__(self):\n        self.nets = [nn.Linear(4, 4)]\n"
        "        for each in self.nets:\n            each.to(device)\nt = Own()",
        "t.nets[0](x0)",
    ),
    "the device of a parameter, kept by an object": (
        "class Loss:\n    def __init__(self, net):\n        device = next(net.parameters()).device\n"
        "        self.device = device\n        self.w = torch.ones(4, device=device)\nt = Loss(net)",
        "(t.w + torch.ones(4, device=t.device))",
    ),
    "in the body of a class": (
        "class Table:\n    w = torch.ones(4).to(device)\nt = Table()",
        "(t.w + Table.w)",
    ),
    "a default argument": (
        "def scaled(x, w=torch.ones(4).to(device), *, v=torch.ones(4, device=device)):\n    return x * w * v",
        "scaled(x0)",
    ),
    "in a list of a dict": (
        "t = collections.defaultdict(list)\nt['a'].append(torch.ones(4).to(device))",
        "t['a'][0]",
    ),
    "added to a list": ("t = []\nt += [torch.ones(4).to(device)]", "t[0]"),
    "a namespace in a namespace": (
        "t = SimpleNamespace(a=SimpleNamespace())\nt.a.w = torch.ones(4).to(device)",
        "t.a.w",
    ),
    "the rest of what is unpacked": (
        "t, *u = [torch.ones(4).to(device), torch.ones(4).to(device)]",
        "t * u[0]",
    ),
    "in an expression": ("if (t := torch.ones(4).to(device)) is not None:\n    pass", "t"),
    "in slots": (
        "class Own:\n    __slots__ = ('w',)\n    def __init__(self):\n"
        "        self.w = torch.ones(4).to(device)\nt = Own()",
        "t.w",
    ),
    "a cached property": (
        "class Own:\n    @functools.cached_property\n    def w(self):\n"
        "        return torch.ones(4).to(device)\nt = Own()\nt.w",
        "t.w",
    ),
    "by a class method": (
        "class Own:\n    @classmethod\n    def made(cls):\n        new = cls()\n"
        "        new.w = torch.ones(4).to(device)\n        return new\nt = Own.made()",
        "t.w",
    ),
    "by a static method": (
        "class Own:\n    @staticmethod\n    def table():\n        return torch.ones(4).to(device)\n"
        "    def __init__(self):\n        self.w = Own.table()\nt = Own()",
        "t.w",
    ),
    "the fields of a dataclass": (
        "import dataclasses\n@dataclasses.dataclass\nclass Own:\n    net: nn.Module\n    w: torch.Tensor\n"
        "t = Own(nn.Linear(4, 4).to(device), w=torch.ones(4).to(device))",
        "t.net(x0) * t.w",
    ),
    "a method that runs where there is a GPU": (
        "class Own:\n    def __init__(self):\n        self.w, self.v = torch.ones(4), torch.ones(4)\n"
        "    def cuda(self):\n        self.w, self.v = self.w.cuda(), self.v.to('cuda')\nt = Own()\n"
        "if torch.cuda.is_available():\n    t.cuda()",
        "t.w * t.v",
    ),
}
FORGOTTEN = {
    "by a switch that is off": (
        "USE = False\nt = nn.Linear(4, 4).to('cuda' if USE and torch.cuda.is_available() else 'cpu')",
        "t(x0)",
    ),
    "made by a switch that is off": (
        "args = argparse.Namespace(cuda=False)\n"
        "where = torch.device('cuda' if args.cuda and torch.cuda.is_available() else 'cpu')\n"
        "t = torch.zeros(4, device=where)",
        "t",
    ),
    "under a switch that is off": ("USE = False\nt = nn.Linear(4, 4)\nif USE:\n    t.to(device)", "t(x0)"),
    "by a function that is told so": (
        "def place(gpu):\n    if gpu and torch.cuda.is_available():\n        return torch.device('cuda')\n"
        "    return torch.device('cpu')\nt = nn.Linear(4, 4).to(place(False))",
        "t(x0)",
    ),
    "by a class that is told so": (
        "class Base:\n    def __init__(self, config):\n"
        "        self.where = torch.device('cuda' if config['gpu'] and torch.cuda.is_available() else 'cpu')\n"
        "class Trainer(Base):\n    def __init__(self, config):\n        super().__init__(config)\n"
        "        self.model = nn.Linear(4, 4).to(self.where)\nt = Trainer({'gpu': False})",
        "t.model(x0)",
    ),
    "appended later": ("t = nn.Sequential(nn.Linear(4, 4)).to(device)\nt.append(nn.Linear(4, 4))", "t(x0)"),
    "inserted later": ("t = nn.Sequential(nn.Linear(4, 4)).to(device)\nt.insert(0, nn.Linear(4, 4))", "t(x0)"),
    "put in later by its name": (
        "t = nn.Sequential(nn.Linear(4, 4)).to(device)\nsetattr(t, '0', nn.Linear(4, 4))",
        "t(x0)",
    ),
    "put in by the function that sends the whole": (
        "def build():\n    model = nn.Sequential(nn.Linear(4, 4)).to(device)\n    model[-1] = nn.Linear(4, 4)\n"
        "    return model\nt = build()",
        "t(x0)",
    ),
    "put in later by a method": (
        "class Trainer:\n    def __init__(self):\n        self.model = nn.Sequential(nn.Linear(4, 4)).to(device)\n"
        "    def grow(self):\n        self.model.add_module('z', nn.Linear(4, 4))\nt = Trainer()\nt.grow()",
        "t.model(x0)",
    ),
    "an attribute whose copy was sent": (
        "class Fit:\n    def __init__(self, data):\n        self.data, self.sent = data, data.to(device)\n"
        "t = Fit(torch.ones(4))",
        "(t.sent * t.data)",
    ),
    "a list whose copies were sent": (
        "class Fit:\n    def __init__(self, data):\n        self.data = data\n"
        "        self.sent = [each.to(device) for each in data]\nt = Fit([torch.ones(4)])",
        "(t.sent[0] * t.data[0])",
    ),
    "a variable whose copy an object has": (
        "class Fit:\n    def __init__(self):\n        self.sent = u.to(device)\nu = torch.ones(4)\nt = Fit()",
        "(t.sent * u)",
    ),
    "a list that a function fills": (
        "t = []\ndef keep(x, label):\n    t.append((x, label))\nkeep(torch.ones(4), 1)",
        "t[0][0]",
    ),
    "an attribute beside those set by name": (
        "class Solver:\n    def __init__(self, **networks):\n        for name, each in networks.items():\n"
        "            setattr(self, name, each.to(device))\n        self.scale = torch.ones(4)\n"
        "t = Solver(inner=nn.Linear(4, 4))",
        "t.inner(x0) * t.scale",
    ),
    "a partial with a tensor": ("t = functools.partial(torch.mul, torch.ones(4))", "t(x0)"),
    "the weights of another": ("t = nn.Linear(4, 4)\nt.load_state_dict(net.state_dict())", "t(x0)"),
    "the size of another": ("t = nn.Linear(net.out_features, 4)", "t(x0)"),
    "the shape of another": ("t = torch.zeros(x0.shape)", "t"),
    "so many as another": ("t = torch.zeros(x0.size(0), 4)", "t"),
    "sent in vain by a function": (
        "def load():\n    t = torch.ones(4)\n    t.to(device)\n    return t\nt = load()",
        "t",
    ),
    "a part put in later": ("t = nn.Sequential(nn.Linear(4, 4)).to(device)\nt[0] = nn.Linear(4, 4)", "t(x0)"),
    "a weight put in later": (
        "t = nn.Sequential(nn.Linear(4, 4)).to(device)\nt[0].weight = nn.Parameter(torch.ones(4, 4))",
        "t(x0)",
    ),
    "a part registered later": (
        "t = nn.Sequential().to(device)\nt.add_module('a', nn.Linear(4, 4))",
        "t.a(x0)",
    ),
    "the device of a tensor beside a device of the same name": (
        "where = SimpleNamespace(device=device)\nu = torch.ones(4)\nt = torch.ones(4, device=u.device)",
        "t",
    ),
    "one column of a dataset": (
        "from torch.utils.data import TensorDataset\nt = TensorDataset(torch.ones(3, 4).to(device), torch.ones(3, 4))",
        "t[0][1]",
    ),
    "not by its own _apply": (
        "class Metric(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.sum, self.other = torch.ones(4), torch.ones(4)\n"
        "    def _apply(self, change, *rest):\n        super()._apply(change, *rest)\n"
        "        self.sum = change(self.sum)\n        return self\nt = Metric().to(device)",
        "t.other",
    ),
    "of two names the one that was not sent": ("t = torch.ones(4)\nu = t.to(device)", "u * t"),
    "a function that sends something else": (
        "def send(m, where):\n    net.to(where)\nt = nn.Linear(4, 4)\nsend(t, device)",
        "t(x0)",
    ),
    "bound anew": ("t = torch.ones(4).to(device)\nt = torch.ones(4)", "t"),
    "brought back": ("t = nn.Linear(4, 4).to(device)\nt.cpu()", "t(x0)"),
    "in a list with another": ("t = nn.ModuleList()\nt.append(nn.Linear(4, 4))\nt.append(net)", "t[0](x0)"),
    "a buffer of another": ("t = nn.Linear(4, 4)\nt.register_buffer('mean', x0)", "t(x0)"),
    "a tuple from a function": ("def load():\n    return torch.ones(4).to(device), torch.ones(4)\nu, t = load()", "t"),
    "a dict from a function": (
        "def load():\n    return {'u': torch.ones(4).to(device), 't': torch.ones(4)}\nt = load()",
        "t['t']",
    ),
    "beside one in a dict": ("t = {'u': torch.ones(4).to(device), 't': torch.ones(4)}", "t['t']"),
    "by a branch not taken": (
        "def pick(fast):\n    t = torch.ones(4)\n    if fast:\n        return t.to(device)\n    return t\n"
        "t = pick(False)",
        "t",
    ),
    "on the CPU on purpose": (
        "def pick(name):\n    return torch.device(name if torch.cuda.is_available() else 'cpu')\n"
        "t = torch.ones(4).to(pick('cpu'))",
        "t",
    ),
    "by a constructor told so": (
        "class Noise:\n    def __init__(self, where=None):\n"
        "        self.where = where or torch.device('cuda' if torch.cuda.is_available() else 'cpu')\n"
        "        self.beta = torch.ones(4).to(self.where)\nt = Noise(torch.device('cpu'))",
        "t.beta",
    ),
    "a field that its to forgets": (
        "class Batch:\n    def __init__(self):\n        self.a, self.b = torch.ones(4), torch.ones(4)\n"
        "    def to(self, where):\n        self.a = self.a.to(where)\n        return self\nt = Batch()\nt.to(device)",
        "t.b",
    ),
    "another attribute": (
        "class Agent:\n    def __init__(self):\n        policy = nn.Linear(4, 4).to(device)\n"
        "        self.policy, self.head = policy, nn.Linear(policy.out_features, 4)\nt = Agent()",
        "t.head(x0)",
    ),
    "a to that keeps nothing": (
        "class Batch:\n    def __init__(self):\n        self.a, self.b = torch.ones(4), torch.ones(4)\n"
        "    def to(self, where):\n        self.a = self.a.to(where)\n        self.b.to(where)\n"
        "t = Batch()\nt.to(device)",
        "t.b",
    ),
    "what a module's to of its own forgets": (
        "class Policy(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.scale, self.bias = torch.ones(4), torch.ones(4)\n"
        "    def to(self, where):\n        self.scale = self.scale.to(where)\n        return super().to(where)\n"
        "t = Policy().to(device)",
        "t.bias",
    ),
    "a member that came after the loop": (
        "t = {'a': nn.Linear(4, 4)}\nfor each in t.values():\n    each.to(device)\nt['b'] = nn.Linear(4, 4)",
        "t['b'](x0)",
    ),
    "tensors of a dict in a loop": (
        "t = {'a': torch.ones(4)}\nfor each in t.values():\n    each.to(device)",
        "t['a']",
    ),
    "tensors of an attribute in a loop": (
        "class Own:\n    def __init__(self):\n        self.rows = [torch.ones(4)]\n"
        "        for each in self.rows:\n            each.to(device)\nt = Own()",
        "t.rows[0]",
    ),
    "another in the body of a class": (
        "class Table:\n    v, w = torch.ones(4).to(device), torch.ones(4)\nt = Table()",
        "t.w",
    ),
    "another field of a dataclass": (
        "import dataclasses\n@dataclasses.dataclass\nclass Own:\n    net: nn.Module\n    w: torch.Tensor\n"
        "t = Own(nn.Linear(4, 4).to(device), w=torch.ones(4))",
        "t.w",
    ),
    "a method that never runs": (
        "class Own:\n    def __init__(self):\n        self.w = torch.ones(4)\n    def cuda(self):\n"
        "        self.w = self.w.cuda()\nt = Own()",
        "t.w",
    ),
    "a dict of its own class": (
        "class Own(collections.UserDict):\n    def to(self, device):\n"
        "        self.data = {name: each.to(device) for name, each in self.data.items()}\n"
        "t = Own({'w': torch.ones(4)})",
        "t['w']",
    ),
}


@pytest.fixture
def load(tmp_path):
    names = []

    def loaded(text):
        name = f"placed_{len(names)}_{tmp_path.name}".replace("-", "_")
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        names.append(name)
        with no_accelerator():
            spec.loader.exec_module(module)
        return module

    import torch

    before = torch._GLOBAL_DEVICE_CONTEXT.__dict__.get("device_context")
    yield loaded
    if torch._GLOBAL_DEVICE_CONTEXT.__dict__.get("device_context") is not before:
        torch.set_default_device(None)
    for name in names:
        del sys.modules[name]


@pytest.mark.parametrize("how", SENT)
def test_what_was_sent_is_there(load, how):
    text, made = SENT[how]
    found = tm.rehearse(load(HEAD + text + STEP.format(made=made)).step)
    assert found.ok, str(found)


def test_functions_that_call_each_other_are_read_in_no_time(load):
    names = [f"each_{index}" for index in range(6)]
    called = " + ".join(f"{name}(x)" for name in names)
    bodies = f"    if n > 1:\n        return {called}\n    return x\n"
    functions = "".join(f"def {name}(x, n=0):\n{bodies}" for name in names)
    steps = load(HEAD + functions + "t = each_0(x0)\n" + STEP.format(made="t"))
    began = time.perf_counter()
    assert tm.rehearse(steps.step)
    assert time.perf_counter() - began < 10


def test_what_another_file_gives_to_a_class_by_the_name_of_its_module_counts(load):
    layers = load(
        "from torch import nn\n\n\nclass Coupling(nn.Module):\n    def __init__(self, mask):\n"
        "        super().__init__()\n        self.scale, self.mask = nn.Linear(4, 4), mask\n\n"
        "    def forward(self, x):\n        return self.scale(x * self.mask)\n"
    )
    text = f"import {layers.__name__} as layers\nt = layers.Coupling({{}}).to(device)\n" + STEP.format(made="t(x0)")
    assert tm.rehearse(load(HEAD + text.format("torch.ones(4).to(device)")).step)
    assert [each.kind for each in tm.rehearse(load(HEAD + text.format("torch.ones(4)")).step).failing] == ["attribute"]


@pytest.mark.parametrize("how", FORGOTTEN)
def test_what_was_forgotten_is_found(load, how):
    text, made = FORGOTTEN[how]
    found = tm.rehearse(load(HEAD + text + STEP.format(made=made)).step)
    assert [each.code for each in found.failing] == [f"return net(x0) * {made}"], str(found)


BOUND = """
class Trainer:
    def __init__(self):
        self.net, self.mean = net, torch.zeros(4){end}

    def step(self):
        return self.net(x0) - self.mean
"""


@pytest.mark.parametrize(("end", "ok"), [(".to(device)", True), ("", False)])
def test_of_a_methods_own_object_what_its_code_sends_is_there(load, end, ok):
    found = tm.rehearse(load(HEAD + BOUND.format(end=end)).Trainer().step)
    assert bool(found) == ok, str(found)
    assert "the step's own object (class Trainer)" in " ".join(found.assumed)


def test_a_methods_own_object_that_sends_nothing_is_state(load):
    text = "\n\nclass Trainer:\n    net, mean = nn.Linear(4, 4), torch.zeros(4)\n\n    def step(self):\n"
    module = load(HEAD + text + "        return self.model(x0)\n")
    trainer = module.Trainer()
    trainer.model = module.nn.Linear(4, 4)
    found = tm.rehearse(trainer.step)
    assert found.ok, str(found)
    assert found.assumed == ("the step's own object (class Trainer) is treated as state",)


def test_an_object_that_keeps_a_tensor_on_the_cpu_by_name_is_state(load):
    text = """

class Trainer:
    def __init__(self):
        self.model = nn.Linear(4, 4)
        self.host, self.wide = torch.ones(4).to(torch.device("cpu")), torch.ones(4).type(torch.FloatTensor)

    def step(self):
        return self.model(x0)
"""
    found = tm.rehearse(load(HEAD + text).Trainer().step)
    assert found.ok, str(found)


ELSEWHERE = """
from {steps} import step


def build():
    if torch.cuda.is_available():
        device = torch.device("cuda")
    else:
        device = torch.device("cpu")
    return step, nn.Linear(4, 4), device, torch.ones(3, 4)
"""


def test_a_step_of_another_file_is_called_with_what_this_one_decides(load):
    steps = load("def step(model, device, x):\n    model(x.to(device)).sum().backward()\n")
    module = load(HEAD + ELSEWHERE.format(steps=steps.__name__))
    from torchmove.rehearsing.run import Options, rehearse_named

    step, *objects = module.build()
    named = dict(zip(("model", "device", "x"), objects, strict=True))
    found = rehearse_named(step, tuple(objects), named, Options(), module.__file__)
    assert found.ok, str(found)


def test_an_accelerator_that_is_not_there_is_no_device(load, monkeypatch):
    # A torch with CUDA answers "cuda" without a GPU too.
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda *_, **__: None)
    text = """

class Trainer:
    def __init__(self):
        self.where = torch.accelerator.current_accelerator()
        self.model = nn.Linear(4, 4).to(self.where)

    def step(self, x):
        return self.model(x.to(self.where))
"""
    found = tm.rehearse(load(HEAD + text).Trainer().step, __import__("torch").ones(3, 4))
    assert found.ok, str(found)


def test_another_error_without_the_simulation_confirms_nothing():
    import torch

    def step(model, x):
        model(x.to("cuda") * torch.cuda.FloatTensor(4).fill_(1))
        raise ValueError("mine")

    found = tm.rehearse(step, torch.nn.Linear(4, 4), torch.ones(2, 4), confirm_errors=True)
    # A TypeError of a torch without CUDA; with CUDA and without a GPU a RuntimeError.
    failed = "not confirmed: without the simulation, on the CPU, the step raises "
    assert f"{failed}TypeError" in found.stopped or f"{failed}RuntimeError: Found no NVIDIA driver" in found.stopped


AGENT = """

class Agent:
    def __init__(self):
        self.net = nn.Linear(4, 4).to(device)
        self.rows, self.scale = torch.ones(8, 4), torch.ones(4){end}

    def learn(self):
        return self.net(self.rows[:2].to(device)) * self.scale

def step(agent):
    agent.learn().sum().backward()
"""


@pytest.mark.parametrize(("end", "ok"), [(".to(device)", True), ("", False)])
def test_an_agent_that_sends_its_own_is_given(load, end, ok):
    module = load(HEAD + AGENT.format(end=end))
    agent = module.Agent()
    found = tm.rehearse(module.step, agent)
    assert bool(found) == ok, str(found)
    assert found.assumed == ("of agent (class Agent), the tensors that its code moves are on cuda:0",)
    if not ok:
        assert found.failing[0].remedy == 'in Agent: self.scale = self.scale.to("cuda")'
    assert tm.rehearse(module.step, agent, state=[agent]).ok


def test_every_attribute_that_a_method_step_forgot_is_found(load):
    text = """

class Learner:
    def __init__(self):
        self.net, self.low, self.high = nn.Linear(4, 4).to(device), torch.zeros(4), torch.ones(4)

    def step(self):
        y = self.net(x0) + self.low
        return y * self.high
"""
    found = tm.rehearse(load(HEAD + text).Learner().step)
    assert [each.kind for each in found.failing] == ["loss", "loss"]
    assert [each.remedy for each in found.failing] == [
        'in Learner: self.low = self.low.to("cuda")',
        'in Learner: self.high = self.high.to("cuda")',
    ]


def test_a_device_that_a_function_returns_is_the_devices(load):
    text = """
def build():
    where = torch.device("cuda" if torch.cuda.is_available() else {other})
    return nn.Linear(4, 4).to(where), where, torch.ones(3, 4)


def step(model, target, x):
    model(x.to(target))
"""
    module = load(HEAD + text.format(other='"cpu"'))
    assert tm.rehearse(module.step, *module.build()).ok
    module = load(HEAD + text.replace('"cuda" if torch.cuda.is_available() else {other}', '"cpu"'))
    assert not tm.rehearse(module.step, *module.build()).ok


def test_a_device_that_comes_with_all_names_of_a_module(load):
    settings = load(HEAD)
    module = load(f"from {settings.__name__} import *\n\n\ndef step(model, x):\n    model(x.to(device))\n")
    torch = module.torch
    assert tm.rehearse(module.step, torch.nn.Linear(4, 4), torch.ones(2, 4)).ok


def test_a_sampler_that_draws_with_a_generator_of_the_device(load):
    text = """
from torch.utils.data import DataLoader, RandomSampler

rows = torch.ones(4, 4)
loader = DataLoader(rows, sampler=RandomSampler(rows, generator=torch.Generator({where})))


def step():
    for row in loader:
        net(row.to(device))
"""
    assert tm.rehearse(load(HEAD + text.format(where='"cpu"')).step).ok
    found = tm.rehearse(load(HEAD + text.format(where="device=device")).step)
    assert [each.kind for each in found.failing] == ["generator"]


def test_settings_of_another_module(load):
    settings = load("import torch\nDEVICE = torch.device('cuda' if torch.cuda.is_available() else 'cpu')\n")
    text = f"import torch\nimport {settings.__name__} as settings\nnet = torch.nn.Linear(4, 4).to(settings.DEVICE)\n"
    step = "\n\ndef step():\n    net(torch.ones(2, 4).to(settings.DEVICE))\n"
    found = tm.rehearse(load(text + step).step)
    assert found.ok, str(found)


@pytest.mark.parametrize("switch", [True, False])
def test_a_device_that_another_file_sets_on_a_module(load, switch):
    settings = load("device = None\n")
    text = f"""import torch
import {settings.__name__} as settings
settings.gpu = {switch}
settings.device = torch.device("cuda" if settings.gpu and torch.cuda.is_available() else "cpu")
net = torch.nn.Linear(4, 4).to(settings.device)

def step():
    net(torch.ones(2, 4).to(settings.device))

def other():
    net(torch.ones(2, 4).cuda())
"""
    module = load(text)
    found = tm.rehearse(module.step)
    assert found.ending == ("finished" if switch else "limit"), str(found)
    assert not found.failing
    assert tm.rehearse(module.other).ok == switch


TOLD = """

class Trainer:
    def __init__(self, gpu):
        self.gpu = gpu
        self.where = torch.device("cuda" if self.gpu and torch.cuda.is_available() else "cpu")
        self.model = nn.Linear(4, 4).to(self.where)

    def train(self, x):
        self.model(x.to({where})).sum().backward()


trainer = Trainer({gpu})
"""


def test_a_trainer_that_is_told_to_stay_on_the_cpu_does(load):
    x = __import__("torch").ones(2, 4)
    found = tm.rehearse(load(HEAD + TOLD.format(where="self.where", gpu=False)).trainer.train, x)
    assert not found.failing
    assert "no tensor was on cuda:0" in found.stopped
    found = tm.rehearse(load(HEAD + TOLD.format(where="'cuda'", gpu=False)).trainer.train, x)
    assert [each.kind for each in found.failing] == ["loss"], str(found)
    assert tm.rehearse(load(HEAD + TOLD.format(where="self.where", gpu=True)).trainer.train, x).ok


TWO = """

class Average:
    def __init__(self, model):
        self.shadow = [each.clone().detach() for each in model.parameters()]


class Trainer:
    def __init__(self, gpu, model):
        self.where = torch.device("cuda" if gpu and torch.cuda.is_available() else "cpu")
        self.model = model.to(self.where)
        self.average = Average(self.model)

    def train(self):
        return self.model(x0) * self.average.shadow[1]


there, here = Trainer(True, nn.Linear(4, 4)), Trainer(False, nn.Linear(4, 4))
"""


def test_each_object_of_a_class_is_read_by_the_call_that_made_it(load):
    module = load(HEAD + TWO)
    assert tm.rehearse(module.there.train).ok
    assert [each.kind for each in tm.rehearse(module.here.train).failing] == ["loss", "loss"]


def test_the_names_of_one_tensor_are_one_again_afterwards(load):
    text = "class Fit:\n    def __init__(self, data):\n        self.data, self.sent = data, data.to(device)\n"
    module = load(HEAD + text + "t = Fit(torch.ones(4))\n" + STEP.format(made="(t.sent * t.data)"))
    assert not tm.rehearse(module.step).ok
    assert module.t.data is module.t.sent


def test_modules_that_another_file_has_sent(load):
    models = load(HEAD)
    text = f"import torch\nfrom {models.__name__} import net, device\n\n\ndef step():\n    net(torch.ones(2, 4)"
    assert tm.rehearse(load(text + ".to(device))\n").step).ok
    assert [each.kind for each in tm.rehearse(load(text + ")\n").step).failing] == ["factory"]


OPTIMIZED = """

def trained():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return model, optimizer

{made}

def step():
    model(x0).sum().backward()
    optimizer.step()
"""
STATES = {
    "made after the model was sent": (
        "def made():\n    model = nn.Linear(4, 4).to(device)\n    optimizer = torch.optim.Adam(model.parameters())\n"
        "    model(torch.ones(2, 4)).sum().backward()\n    optimizer.step()\n    return model, optimizer\n"
        "model, optimizer = made()",
        True,
    ),
    "loaded after the model was sent": (
        "def made():\n    model, other = trained()\n    model.to(device)\n"
        "    optimizer = torch.optim.Adam(model.parameters())\n"
        "    optimizer.load_state_dict(other.state_dict())\n    return model, optimizer\nmodel, optimizer = made()",
        True,
    ),
    "sent in a loop": (
        "model, optimizer = trained()\nmodel.to(device)\nfor its in optimizer.state.values():\n"
        "    for key, each in its.items():\n        its[key] = each.to(device) if each.dim() else each",
        True,
    ),
    "left behind": ("model, optimizer = trained()\nmodel.to(device)", False),
}


@pytest.mark.parametrize("how", STATES)
def test_the_state_of_an_optimizer_is_where_the_statements_put_it(load, how):
    made, ok = STATES[how]
    found = tm.rehearse(load(HEAD + OPTIMIZED.format(made=made)).step)
    assert [each.kind for each in found.failing] == ([] if ok else ["optimizer"]), str(found)


# ---------------------------------------------------------------- settings that another file makes

PARTS = """import torch
from torch import nn


class Trainer:
    def __init__(self, cfg):
        self.cfg, self.net = cfg, nn.Linear(4, 4).to(cfg{device})
        self.weight = torch.ones(4){end}

    def fit(self, x):
        return (self.net(x.to(self.cfg{device})) * self.weight).sum()
"""
MAKES = {
    "an object": "class Config:\n    def __init__(self):\n        self.device = {chosen}\n\n\ncfg = Config()\n",
    "a dataclass": (
        "from dataclasses import dataclass, field\n\n\n@dataclass\nclass Config:\n"
        "    device: str = field(default_factory=lambda: {chosen})\n\n\ncfg = Config()\n"
    ),
    "a function": (
        "import argparse\n\n\ndef parsed():\n    args = argparse.Namespace(lr=0.1)\n    args.device = {chosen}\n"
        "    return args\n\n\ncfg = parsed()\n"
    ),
    "the body of a class": "class cfg:\n    device = {chosen}\n",
    "a dict": "cfg = {{'lr': 0.1, 'device': {chosen}}}\n",
}


@pytest.mark.parametrize("makes", MAKES)
@pytest.mark.parametrize("end", [".to(cfg{device})", ""])
def test_the_device_of_settings_that_another_file_makes(load, makes, end):
    device = "['device']" if makes == "a dict" else ".device"
    chosen = '"cuda" if torch.cuda.is_available() else "cpu"'
    settings = load("import torch\n" + MAKES[makes].format(chosen=chosen))
    parts = load(PARTS.format(device=device, end=end.format(device=device)))
    program = load(
        f"from {settings.__name__} import cfg\nfrom {parts.__name__} import Trainer\n\n\n"
        "def make():\n    return Trainer(cfg)\n\n\ndef step(trainer, x):\n    trainer.fit(x)\n"
    )
    import torch

    found = tm.rehearse(program.step, program.make(), torch.ones(3, 4))
    assert [each.kind for each in found.failing] == ([] if end else ["loss"]), str(found)
    assert found.stopped == ""
