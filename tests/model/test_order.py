import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.order import (
    BLOCK_SLOTS,
    GROUP_ROWS,
    RUN_GROUPS,
    DataOrder,
    Pack,
    PackPart,
    check_epochs,
    next_positions,
    permute,
    slots_of,
)

WEIGHTS = {"code": 0.3, "docs": 0.2, "web": 0.5}


def make_packs(**rows: list[int]) -> list[Pack]:
    packs = []
    for source, sizes in rows.items():
        parts = tuple(PackPart(f"{source}/{index}", size) for index, size in enumerate(sizes))
        packs.append(Pack(source, f"digest-{source}", parts, tokens=sum(sizes) * 8, length=8))
    return packs


PACKS = make_packs(web=[700, 512, 30], code=[256, 1], docs=[300])


def order_of(phase: str = "main", used: dict[str, int] | None = None, seed: int = 7) -> DataOrder:
    return DataOrder(seed, phase, slots_of(WEIGHTS), PACKS, used)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5000), st.text(max_size=8))
def test_permutation_is_a_bijection(size: int, key: str) -> None:
    assert np.array_equal(np.sort(permute(np.arange(size), size, key)), np.arange(size))


def test_permutation_depends_on_its_key_and_mixes() -> None:
    one, two = (permute(np.arange(1000), 1000, key) for key in ("a", "b"))
    assert np.count_nonzero(one == two) < 10
    assert abs(np.corrcoef(np.arange(1000), one)[0, 1]) < 0.1
    assert np.array_equal(permute(np.array([5, 900]), 1000, "a"), one[[5, 900]])  # random access


def test_permutation_is_this_one_for_ever() -> None:
    """Another order would silently change what a resumed run reads: the values are part of the format."""
    assert permute(np.arange(10), 10, "7/main/0").tolist() == [9, 5, 2, 7, 6, 3, 0, 1, 8, 4]


@pytest.mark.parametrize(
    ("weights", "slots"),
    [
        ({"web": 1}, {"web": 4096}),
        ({"web": 0.5, "code": 0.3, "docs": 0.2}, {"web": 2048, "code": 1229, "docs": 819}),
        ({"a": 1, "b": 1, "c": 1}, {"a": 1366, "b": 1365, "c": 1365}),
        ({"web": 1e9, "rare": 1e-9, "none": 0}, {"web": 4095, "rare": 1}),
        ({"x": 3, "y": 1}, {"x": 3072, "y": 1024}),
    ],
)
def test_weights_become_slots_by_largest_remainder(weights: dict[str, float], slots: dict[str, int]) -> None:
    assert slots_of(weights) == slots


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1e-12, 1e6), min_size=1, max_size=300))
def test_slots_always_fill_the_block(weights: list[float]) -> None:
    slots = slots_of({f"s{i}": weight for i, weight in enumerate(weights)})
    assert sum(slots.values()) == BLOCK_SLOTS
    assert min(slots.values()) >= 1


def test_shares_are_exact_in_every_block() -> None:
    order = order_of()
    for block in range(3):
        located = order.locate(np.arange(block * BLOCK_SLOTS, (block + 1) * BLOCK_SLOTS))
        assert np.bincount(located.source).tolist() == [1229, 819, 2048]  # code, docs, web


def test_an_epoch_reads_every_row_once() -> None:
    located = order_of().locate(np.arange(4 * BLOCK_SLOTS))
    for index, pack in enumerate(order_of().packs):
        for epoch in range(int(located.epoch[located.source == index].max())):
            mine = (located.source == index) & (located.epoch == epoch)
            rows = {(int(g), int(o)) for g, o in zip(located.group[mine], located.offset[mine], strict=True)}
            assert np.count_nonzero(mine) == len(rows) == pack.rows
            assert all(offset < pack.group_sizes[group] for group, offset in rows)


def test_consecutive_rows_stay_within_a_run_of_row_groups() -> None:
    pack = make_packs(web=[GROUP_ROWS * 300])
    located = DataOrder(1, "main", {"web": 4096}, pack).locate(np.arange(RUN_GROUPS * GROUP_ROWS))
    assert len(np.unique(located.group)) == RUN_GROUPS
    assert len(np.unique(located.group[:256])) > RUN_GROUPS // 2  # and a batch mixes them


def test_order_is_random_access() -> None:
    order = order_of()
    whole = order.rows_of_positions(np.arange(6000))
    assert order.rows_of_positions(np.array([5999, 0, 4096])) == [whole[5999], whole[0], whole[4096]]
    assert [ref.position for ref in whole] == list(range(6000))
    for parts in (np.array_split(np.arange(6000), pieces) for pieces in (2, 7)):
        assert [ref for piece in parts for ref in order.rows_of_positions(piece)] == whole


def test_seed_and_phase_change_the_order() -> None:
    def refs(order: DataOrder) -> list[tuple[str, int]]:
        return [(ref.part_key, ref.row) for ref in order.rows_of_positions(np.arange(100))]

    first = refs(order_of())
    assert first == refs(order_of())
    assert first != refs(order_of(seed=8))
    assert first != refs(order_of(phase="anneal"))


def test_a_following_phase_goes_on_where_the_parent_stopped() -> None:
    parent = order_of()
    used = parent.ordinals_until(5000)
    assert sum(used.values()) == 5000
    child = order_of("anneal", used)
    drawn = np.concatenate([parent.locate(np.arange(5000)).source, child.locate(np.arange(3000)).source])
    assert child.ordinals_until(3000) == {
        pack.key: int(np.count_nonzero(drawn == index)) for index, pack in enumerate(parent.packs)
    }
    web = [
        r
        for r in parent.rows_of_positions(np.arange(5000)) + child.rows_of_positions(np.arange(3000))
        if r.source == "web"
    ]
    second_epoch = [(r.part_key, r.row) for r in web if r.epoch == 1]
    assert len(second_epoch) == len(set(second_epoch)) == 1242


def test_rows_name_part_and_row() -> None:
    for ref in order_of().rows_of_positions(np.arange(3000)):
        source, part = ref.part_key.split("/")
        assert source == ref.source
        assert 0 <= ref.row < {p.source: p for p in PACKS}[source].parts[int(part)].rows


@pytest.mark.parametrize(
    ("skips", "taken"),
    [
        ([], [10, 11, 12, 13]),
        ([(0, 10)], [10, 11, 12, 13]),
        ([(10, 12)], [12, 13, 14, 15]),
        ([(11, 13), (14, 100)], [10, 13, 100, 101]),
        ([(5, 11), (11, 12), (13, 14)], [12, 14, 15, 16]),
        ([(14, 20)], [10, 11, 12, 13]),
    ],
)
def test_skipped_positions_are_passed_over(skips: list[tuple[int, int]], taken: list[int]) -> None:
    assert next_positions(10, 4, skips).tolist() == taken


def test_too_many_epochs_are_refused_with_the_figures() -> None:
    parent = order_of()
    child = order_of("anneal", parent.ordinals_until(4096))
    check_epochs([(parent, 4096), (child, 100)], 5.0)
    with pytest.raises(
        ValueError, match=r"phase main would read source code 4.78 times \(1229 rows of 8 from 2056 tokens\)"
    ):
        check_epochs([(parent, 4096)], 4.0)
    with pytest.raises(ValueError, match=r"phase anneal would read source code 9\.56 times"):
        check_epochs([(parent, 4096), (child, 4096)], 5.0)


def test_packs_must_hold_what_the_weights_ask_for() -> None:
    with pytest.raises(ValueError, match=r"no pack for the weighted sources \['docs', 'web'\]; there are \['code'\]"):
        DataOrder(1, "main", slots_of(WEIGHTS), make_packs(code=[5]))
    with pytest.raises(ValueError, match="main: weights name code, which has no text to train on"):
        DataOrder(1, "main", {"code": 4096}, make_packs(code=[]))
