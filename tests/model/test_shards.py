"""Shards as safetensors reads them; that checkpoints of them load is held by test_checkpoint.py."""

import io
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load

from model import shards
from model.shards import TYPES, write_safetensors


def written(tensors: dict[str, torch.Tensor]) -> bytes:
    file = io.BytesIO()
    write_safetensors(file, tensors, {"format": "pt"})
    return file.getvalue()


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_is_read_back(dtype: torch.dtype) -> None:
    tensor = torch.arange(12).view(3, 4).to(dtype)
    read = load(written({"a": tensor, "é": tensor.T, "none": tensor[:0], "one": tensor[1, 1]}))
    assert read["a"].dtype == dtype
    assert torch.equal(read["a"], tensor)
    assert torch.equal(read["é"], tensor.T)
    assert (read["none"].shape, read["one"].shape) == ((0, 4), ())


def test_pieces_join_and_metadata_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"z": torch.randn(7, 9), "b": torch.ones(3, dtype=torch.bool), "a": torch.randn(5, dtype=torch.float64)}
    whole = written(tensors)
    monkeypatch.setattr(shards, "PIECE_BYTES", 16)
    assert written(dict(reversed(tensors.items()))) == whole
    (tmp_path / "x.safetensors").write_bytes(whole)
    with safe_open(tmp_path / "x.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert {name: file.get_tensor(name).tolist() for name in tensors} == {n: t.tolist() for n, t in tensors.items()}
    assert int.from_bytes(whole[:8], "little") % 8 == 0
