import json

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from model.live import SCALARS, LiveView
from model.store import Store
from tasks.storage import Storage


def line_of(step: int) -> dict[str, object]:
    return {"step": step, "phase": "main", **dict.fromkeys(SCALARS, step / 2)}


def test_segments_hold_each_line_once_in_order(store: Storage) -> None:
    view = LiveView(store, "runs/r/live", "a1")
    view.add({"event": "begin", "message": "fresh start"})
    view.close_segment()
    for step in (1, 2):
        view.add(line_of(step))
    view.close_segment()
    view.close_segment()  # nothing collected, nothing written
    view.add(line_of(3))
    view.close_segment()
    files = [file.key for file in store.list_files("runs/r/live") if file.key.endswith(".jsonl")]
    assert files == [f"runs/r/live/a1-0000{number}.jsonl" for number in (1, 2, 3)]
    lines = [json.loads(line) for key in files for line in store.read_bytes(key).splitlines()]
    assert lines == [{"event": "begin", "message": "fresh start"}, *(line_of(step) for step in (1, 2, 3))]


def test_a_loss_that_is_not_finite_is_null(store: Storage) -> None:
    """NaN is no JSON: who follows the training would stumble over the very step that matters."""
    view = LiveView(store, "live", "a1")
    view.add(line_of(1) | {"loss": float("nan"), "grad_norm": float("inf")})
    view.close_segment()
    line = store.read_bytes("live/a1-00001.jsonl")
    assert b"NaN" not in line
    assert [json.loads(line)[name] for name in ("loss", "grad_norm", "lr")] == [None, None, 0.5]


def test_tensorboard_reads_the_segments_as_one_curve(store: Storage) -> None:
    view = LiveView(store, "live", "a1")
    for step in (1, 2, 3):
        view.add(line_of(step))
        view.close_segment()
    found: dict[int, float] = {}
    for file in store.list_files("live/tensorboard"):
        events = EventAccumulator(store.path(file.key)).Reload()
        assert set(events.Tags()["scalars"]) == {f"main/{name}" for name in SCALARS}
        found |= {event.step: event.value for event in events.Scalars("main/loss")}
    assert found == {1: 0.5, 2: 1.0, 3: 1.5}
    assert {"loss", "z_loss", "balance_loss", "router_z_loss", "grad_norm", "update_norm"} <= set(SCALARS)  # apart


def test_tensorboard_shows_bits_per_byte_of_each_source(store: Storage) -> None:
    view = LiveView(store, "live", "a1")
    view.add({"event": "begin", "message": "fresh start"})
    view.add({"event": "held-out loss", "phase": "main", "step": 9, "bits_per_byte": {"web": 1.5, "code": None}})
    view.close_segment()
    [file] = store.list_files("live/tensorboard")
    events = EventAccumulator(store.path(file.key)).Reload()
    assert events.Tags()["scalars"] == ["main/bits_per_byte/web"]
    assert [(event.step, event.value) for event in events.Scalars("main/bits_per_byte/web")] == [(9, 1.5)]


def test_without_a_place_nothing_is_kept(store: Storage) -> None:
    view = LiveView(store, None, "a1")
    view.add(line_of(1))
    view.close_segment()
    assert view.lines == []
    assert store.list_files("") == []


def test_the_storage_is_a_store(store: Storage) -> None:
    """mypy holds the protocol; this holds what it can't: files appear whole and creation is exclusive."""
    given: Store = store
    given.write_bytes("a/b", b"1")
    assert (given.create("a/b", b"2"), given.create("a/c", b"3")) == (False, True)
    assert [(file.key, file.size) for file in given.list_files("a")] == [("a/b", 1), ("a/c", 1)]
    given.delete("a/b")
    assert not given.exists("a/b")
    with given.open_input("a/c") as file:
        assert file.read() == given.read_bytes("a/c") == b"3"
