"""Connected components: the same whatever the order of the edges, named by their smallest node."""

import random

import numpy as np

from tasks.kernels.components import join, settle


def components(num_nodes: int, edges: list[tuple[int, int]], pieces: int = 1) -> tuple[list[int], list[int]]:
    parents = np.arange(num_nodes, dtype=np.int32)
    for piece in np.array_split(np.array(edges or np.empty((0, 2)), np.int64), pieces):
        join(parents, np.ascontiguousarray(piece[:, 0]), np.ascontiguousarray(piece[:, 1]))
    sizes = settle(parents)
    return parents.tolist(), sizes.tolist()


def slow_components(num_nodes: int, edges: list[tuple[int, int]]) -> list[int]:
    names = list(range(num_nodes))
    for _ in range(num_nodes):
        for one, other in edges:
            names[one] = names[other] = min(names[one], names[other])
    return names


def test_equal_the_definition_in_any_order() -> None:
    rng = random.Random(1)
    for _ in range(20):
        num_nodes = rng.randrange(2, 60)
        edges = [(rng.randrange(num_nodes), rng.randrange(num_nodes)) for _ in range(rng.randrange(60))]
        expected = slow_components(num_nodes, edges)
        for pieces in (1, 3):
            rng.shuffle(edges)
            names, sizes = components(num_nodes, edges, pieces)
            assert names == expected
            assert sizes == np.bincount(expected, minlength=num_nodes).tolist()


def test_a_long_chain_and_a_star_are_one_component() -> None:
    chain = [(n + 1, n) for n in reversed(range(20_000))]
    assert set(components(20_001, chain)[0]) == {0}
    star = [(19_999, n) for n in range(20_000)]
    names, sizes = components(20_000, star)
    assert set(names) == {0}
    assert sizes[0] == 20_000
    assert sum(sizes[1:]) == 0


def test_no_edges_leave_everybody_alone() -> None:
    assert components(3, []) == ([0, 1, 2], [1, 1, 1])
