"""torch_geometric: graphs, and layers that keep a normalised copy of one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lives import Life, goes_on, library, trained

import torchmove as tm

data = library("torch_geometric.data")
layers = library("torch_geometric.nn")

EDGES = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])


def graph() -> Any:
    return data.Data(x=torch.randn(4, 8), edge_index=EDGES.clone(), y=torch.arange(4), name="ring")


def hetero() -> Any:
    made = data.HeteroData()
    made["paper"].x, made["author"].x = torch.randn(3, 8), torch.randn(2, 8)
    made["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [1, 2]])
    return made


GRAPHS = {"data": graph, "hetero": hetero, "batch": lambda: data.Batch.from_data_list([graph(), graph()])}


def leaves(made: Any) -> dict[str, torch.Tensor]:
    """With what a batch needs to be taken apart again."""
    found = {
        f"{index} {key}": value
        for index, store in enumerate(made.stores)
        for key, value in store.items()
        if isinstance(value, torch.Tensor)
    }
    for kept in ("_slice_dict", "_inc_dict") if isinstance(made, data.Batch) else ():
        inside = getattr(made, kept).items()
        found |= {f"{kept} {key}": value for key, value in inside if isinstance(value, torch.Tensor)}
    return found


@pytest.mark.parametrize("kind", GRAPHS)
def test_a_graph_moves(kind, route):
    def make() -> Life:
        made = GRAPHS[kind]()
        return Life((made,), lambda: leaves(made), lambda: live(made))

    def live(made: Any) -> Any:
        parts = made.to_data_list() if kind == "batch" else [made]
        return [list(leaves(part).values()) for part in parts]

    goes_on(make, route)


LAYERS = {
    "GCNConv": lambda: layers.GCNConv(8, 4, cached=True),  # keeps the normalised graph
    "SGConv": lambda: layers.SGConv(8, 4, 2, cached=True),  # keeps the features that it has spread over the graph
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_with_a_cached_graph_trains_on(name, route):
    def make() -> Life:
        layer, made = LAYERS[name](), graph()
        optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2)
        life = trained(layer, optimizer, lambda device: layer(made.x, made.edge_index).square().mean(), None, made)
        tensors = life.tensors
        life.tensors = lambda: {**tensors(), **leaves(made), **cached(layer)}
        return life

    goes_on(make, route)


def cached(layer: Any) -> dict[str, torch.Tensor]:
    if isinstance(layer, layers.SGConv):
        return {"cached features": layer._cached_x}
    edges, weights = layer._cached_edge_index
    return {"cached edges": edges, "cached weights": weights}


def test_to_leaves_the_cached_graph_behind(twin):
    layer, made = layers.GCNConv(8, 4, cached=True), graph()
    layer(made.x, made.edge_index).detach()
    layer.to("twin:0")
    assert {tensor.device.type for tensor in cached(layer).values()} == {"cpu"}
    tm.move(layer, to="twin:0")
    assert {tensor.device.type for tensor in cached(layer).values()} == {"twin"}
