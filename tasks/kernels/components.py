"""Connected components of a graph whose nodes are positions in a sorted array, compiled."""

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True)
def join(parents: Any, ones: Any, others: Any) -> None:
    """Union the ends of each edge; the smallest position of a component is its root, whatever the order of the
    edges."""
    for index in range(len(ones)):
        one, other = _root(parents, ones[index]), _root(parents, others[index])
        if one < other:
            parents[other] = one
        elif other < one:
            parents[one] = other


@njit(cache=True)
def _root(parents: Any, node: int) -> int:
    while parents[node] != node:
        parents[node] = parents[parents[node]]  # halve the path on the way
        node = parents[node]
    return node


@njit(cache=True)
def settle(parents: Any) -> Any:
    """Point every node at its root; members per root (0 for nodes that are none)."""
    sizes = np.zeros(len(parents), np.int32)
    for node in range(len(parents)):
        parents[node] = parents[parents[node]]  # roots are smaller than their nodes: they are settled already
        sizes[parents[node]] += 1
    return sizes
