"""A state, such as optimizer.state_dict(), as tensors by name and a document for JSON, and back.

    flatten({"lr": (0.1, inf), "state": {0: {"m": tensor}}})
        tensors     {"state.0.m": tensor}
        document    {"lr": {"$tuple": [0.1, {"$float": "inf"}]},
                     "state": {"$items": [[0, {"m": {"$tensor": "state.0.m"}}]]}}

What JSON has stands as it is. A dict with one key that starts with "$" is one of the four above; a dict whose own keys
would look like that, or are no strings, is given as items. So nothing is lost: numbers keep every bit, tuples stay
tuples, keys stay integers, dicts keep their order. Subclasses of dict come back as dict, parameters as tensors.
"""

import math
from typing import Any

from torch import Tensor

_TUPLE, _ITEMS, _FLOAT, _TENSOR = "$tuple", "$items", "$float", "$tensor"


def flatten(state: Any) -> tuple[dict[str, Tensor], Any]:
    """(tensors, document). The tensors are those of the state, not copies."""
    tensors: dict[str, Tensor] = {}
    document = _Flattening(tensors).document(state, ())
    return tensors, document


def unflatten(tensors: dict[str, Tensor], document: Any) -> Any:
    """The state that flatten() was given. Where it held one tensor twice, so does this."""
    if isinstance(document, list):
        return [unflatten(tensors, item) for item in document]
    if not isinstance(document, dict):
        return document
    if len(document) == 1:
        ((kind, value),) = document.items()
        if kind == _TENSOR:
            return tensors[value]
        if kind == _FLOAT:
            return float(value)
        if kind == _TUPLE:
            return tuple(unflatten(tensors, item) for item in value)
        if kind == _ITEMS:
            return {unflatten(tensors, key): unflatten(tensors, item) for key, item in value}
    return {key: unflatten(tensors, item) for key, item in document.items()}


class _Flattening:
    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors
        self._names: dict[int, str] = {}  # by identity of the tensor, which the state keeps alive

    def document(self, value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, Tensor):
            return {_TENSOR: self._name(value, path)}
        if value is None or type(value) in (bool, int, str):
            return value
        if isinstance(value, float):  # numpy's float64 is one, too
            return float(value) if math.isfinite(value) else {_FLOAT: repr(float(value))}
        if type(value) is list:
            return [self.document(item, (*path, str(i))) for i, item in enumerate(value)]
        if type(value) is tuple:
            return {_TUPLE: [self.document(item, (*path, str(i))) for i, item in enumerate(value)]}
        if isinstance(value, dict):
            items = [(key, self.document(item, (*path, str(key)))) for key, item in value.items()]
            if all(type(key) is str and not key.startswith("$") for key in value):
                return dict(items)
            return {_ITEMS: [[self._key(key, path), item] for key, item in items]}
        raise TypeError(
            f"expected tensors, numbers, strings, lists, tuples and dicts in a state, got"
            f" {type(value).__name__} at {'.'.join(path) or 'its top'}; give it as one of these"
        )

    def _key(self, key: Any, path: tuple[str, ...]) -> Any:
        if isinstance(key, Tensor):
            raise TypeError(f"expected keys of numbers and strings in a state, got a tensor in {'.'.join(path)}")
        return self.document(key, (*path, "key"))

    def _name(self, tensor: Tensor, path: tuple[str, ...]) -> str:
        """Its place in the state; of two places that read alike ({"a.b": x, "a": {"b": y}}) the second has a number."""
        known = self._names.get(id(tensor))
        if known is not None:
            return known
        place = name = ".".join(path) or "tensor"
        count = 1
        while name in self._tensors:
            count += 1
            name = f"{place}#{count}"
        self._tensors[name] = tensor.detach()
        self._names[id(tensor)] = name
        return name
