"""The layers of several plans as one graph: each distinct layer once, whatever images need it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from envbuild.plan.model import BuildPlan, Layer


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGraph:
    """Distinct layers by their keys. Plans may have layers of one name and different keys."""

    layers: Mapping[str, Layer]
    """Key → layer; every one behind those that it is made from."""
    inputs: Mapping[str, Mapping[str, str]]
    """Key → the layers that it is made from: name → key."""
    image_keys: tuple[str, ...]
    """Keys of the layers that images hold, each once."""

    @staticmethod
    def of(plans: Iterable[BuildPlan]) -> LayerGraph:
        """Return the graph of plans; of layers with one key, the first stands for all."""
        layers: dict[str, Layer] = {}
        inputs: dict[str, Mapping[str, str]] = {}
        image_keys: dict[str, None] = {}
        for plan in plans:
            keys = {layer.name: layer.key for layer in plan.layers}
            for layer in plan.layers:
                if layer.key not in layers:
                    layers[layer.key] = layer
                    inputs[layer.key] = {name: keys[name] for name in layer.inputs}
            image_keys.update((keys[name], None) for name in plan.image)
        return LayerGraph(layers=layers, inputs=inputs, image_keys=tuple(image_keys))

    @property
    def image_layers(self) -> tuple[Layer, ...]:
        """The layers that images hold, each once."""
        return tuple(self.layers[key] for key in self.image_keys)

    def needed(self, is_finished: Callable[[str], bool]) -> tuple[Layer, ...]:
        """Return the layers that have to be built, every one behind those that it is made from.

        `is_finished` is asked about the key of a layer, once. Inputs of finished layers are not built.
        """
        needed: set[str] = set()
        asked: set[str] = set()
        waiting = list(self.image_keys)
        while waiting:
            key = waiting.pop()
            if key not in asked:
                asked.add(key)
                if not is_finished(key):
                    needed.add(key)
                    waiting += self.inputs[key].values()
        return tuple(layer for key, layer in self.layers.items() if key in needed)
