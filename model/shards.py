"""The tensors of one rank as a safetensors file, written piece by piece straight from where they lie.

torch's own writer builds the file in memory, twice, and keeps the interpreter for as long as it copies: training, which
goes on beside a save, stood still meanwhile, and a rank needed three times its share. A write of a piece holds nothing.
Layout: https://huggingface.co/docs/safetensors, with the metadata that DCP's reader expects.
"""

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor
from torch.distributed.checkpoint._hf_utils import (
    CUSTOM_METADATA_KEY,
    DCP_VERSION_KEY,
    FORMAT_KEY,
    FORMAT_VALUE,
    HF_DCP_VERSION,
)
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

PIECE_BYTES = 1 << 24
ALIGNMENT = 8  # of the first tensor, in bytes
TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


class ShardWriter(HuggingFaceStorageWriter):
    """DCP's writer of safetensors, one file per rank."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), save_distributed=True)
        self.folder = folder

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's share. Raises OSError."""
        tensors: dict[str, Tensor] = {}
        offsets: dict[str, dict[str, list[int]]] = {}
        for item in plan.items:
            tensor = planner.resolve_data(item)
            assert isinstance(tensor, Tensor)  # weights and moments are all there is
            assert item.tensor_data is not None
            tensors[item.index.fqn] = tensor.cpu()
            offsets[item.index.fqn] = {"saved_offsets": list(item.tensor_data.chunk.offsets)}
        if tensors:
            facts = {DCP_VERSION_KEY: str(HF_DCP_VERSION), FORMAT_KEY: FORMAT_VALUE}
            facts |= {CUSTOM_METADATA_KEY: json.dumps(offsets)}
            path = self.folder / f"shard-{plan.storage_data['shard_index']:05d}-model-00001-of-00001.safetensors"
            try:
                with path.open("wb") as file:
                    write_safetensors(file, tensors, facts)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise no_room(path, sum(tensor.nbytes for tensor in tensors.values())) from error
                raise
        future: Future[list[WriteResult]] = Future()
        future.set_result([])  # nobody asks where in a file a tensor lies: its header says it
        return future


def no_room(path: Path, needed_bytes: int) -> OSError:
    """What a full disk means for a file that was to be written there; what was written of it is removed."""
    path.unlink(missing_ok=True)
    free = shutil.disk_usage(path.parent).free
    told = f"{os.strerror(errno.ENOSPC)}: {needed_bytes:,} bytes needed, {free:,} free"
    return OSError(errno.ENOSPC, told, str(path))


def write_safetensors(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors, those of the largest elements first, so that each is aligned; equal tensors give equal bytes."""
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))}
    end = 0
    for name in names:
        tensor, begin = tensors[name], end
        end = begin + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in names:
        for piece in _pieces(tensors[name]):
            file.write(piece)


def _pieces(tensor: Tensor) -> Iterator[memoryview]:
    data = tensor.contiguous().view(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(b"")
    for begin in range(0, len(data), PIECE_BYTES):
        yield data[begin : begin + PIECE_BYTES]
