"""Shards as safetensors reads them; that checkpoints of them load is held by test_checkpoint.py."""

import errno
import io
import os
import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save

from model import shards
from model.shards import TYPES, ShardWriter, write_safetensors


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


def test_a_full_disk_is_told_with_path_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "shard-00001-model-00001-of-00001.safetensors"
    path.symlink_to("/dev/full")
    with pytest.raises(CheckpointException) as raised:
        save({"a": torch.ones(10, 10)}, storage_writer=ShardWriter(tmp_path), no_dist=True)
    [(error, _)] = raised.value.failures.values()
    assert isinstance(error, OSError)
    assert (error.errno, error.filename) == (errno.ENOSPC, str(path))
    assert re.fullmatch("No space left on device: 400 bytes needed, [0-9,]+ free", str(error.strerror))
    assert not os.path.lexists(path)
