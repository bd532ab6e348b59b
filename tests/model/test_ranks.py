import json
from pathlib import Path
from typing import Any

import torch

from model.ranks import Ranks

WORKER = """
import json, torch
from pathlib import Path
import torch.distributed as dist
from model.ranks import Ranks
dist.init_process_group("gloo", init_method=INIT_METHOD, rank=RANK, world_size=RANKS)
ranks = Ranks.of_this_process()
total = torch.tensor([1.5, RANK])
ranks.sum_tensor(total)
found = {
    "place": [ranks.rank, ranks.count, ranks.local_rank, ranks.local_count, ranks.is_first],
    "gather": ranks.gather({"rank": RANK}),
    "first": ranks.from_first(RANK + 10),
    "sum": ranks.sum([0.1, float(RANK)], torch.device("cpu")),
    "tensor": total.tolist(),
}
ranks.wait()
Path(FOLDER, f"{RANK}.json").write_text(json.dumps(found))
dist.destroy_process_group()
"""


def test_ranks_answer_alike(rank_processes: Any, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    rank_processes.run(script, 2, FOLDER=str(tmp_path))
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert (first.pop("place"), second.pop("place")) == ([0, 2, 0, 2, True], [1, 2, 1, 2, False])
    assert first == second
    assert first == {"gather": [{"rank": 0}, {"rank": 1}], "first": 10, "sum": [0.2, 1.0], "tensor": [3.0, 1.0]}


def test_one_process_needs_no_group() -> None:
    alone = Ranks.of_this_process()
    assert (alone, alone.is_first) == (Ranks(0, 1, 0, 1), True)
    assert (alone.gather("x"), alone.from_first("x")) == (["x"], "x")
    assert alone.sum([0.1, 2.0], torch.device("cpu")) == [0.1, 2.0]
    alone.wait()
