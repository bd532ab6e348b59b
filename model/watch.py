"""What is watched of a training beside its losses; a view, so nothing of it reaches a result.

- update norm: |last AdamW update| over all weights, every UPDATE_NORM_STEPS steps. It rises before losses do.
- MFU: share of the devices' peak that forward and backward use (PaLM's formula), where the peak is known by name.
- text that the model writes after the first tokens of a held-out row, whenever its held-out loss is measured.
- a profile of the steps that the settings ask for, as a trace that chrome://tracing and Perfetto open.
"""

from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from model.cost import model_flops_utilisation
from model.distribute import local_tensor
from model.generate import Sampling, generate
from model.job import Job
from model.optimizer import last_update
from model.ranks import Ranks
from model.training import Training

UPDATE_NORM_STEPS = 10  # reading weights and moments again costs about as much as the optimizer's own step
PROMPT_TOKENS = 16
SAMPLING = Sampling(max_new_tokens=48, temperature=0.8, top_p=0.95)


class Watch:
    """The watcher of one rank. What it measures is collective: every rank asks the same at the same step."""

    def __init__(self, job: Job, ranks: Ranks, training: Training) -> None:
        self.job, self.ranks, self.training = job, ranks, training
        self.profiler: Any = None

    def of_step(self, line: dict[str, Any]) -> dict[str, float]:
        """Figures of a step for the live view. `line`: what was noted of it."""
        speed = line["rows"] * self.job.run.phase.sequence_length / line["seconds"]
        figures = {"tokens_per_second": speed, "data_wait_ratio": line["data_seconds"] / line["seconds"]}
        device = str(self.training.compute["device"])
        if (mfu := model_flops_utilisation(self.job.run, speed, device, self.ranks.count)) is not None:
            figures["mfu"] = mfu
        if line["action"] == "apply" and line["step"] % UPDATE_NORM_STEPS == 0:
            figures["update_norm"] = self.update_norm()
        return figures

    def update_norm(self) -> float:
        """Euclidean norm of the last update of all weights. Collective."""
        optimizer, settings = self.training.optimizer, self.job.settings
        total = 0.0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                total += float(local_tensor(last_update(optimizer, group, parameter)).double().square().sum())
        shard_ranks = 1 if settings.parallel == "ddp" else settings.shard_ranks or self.ranks.count
        copies = self.ranks.count // shard_ranks
        return float((self.ranks.sum([total], self.training.device)[0] / copies) ** 0.5)

    def sample(self) -> dict[str, Any] | None:
        """An event with text of the model, the sources in turn; None without held-out rows or tokenizer. Collective."""
        batches, decode = self.training.held_out.batches, self.job.decode
        if not batches or decode is None:
            return None
        turn = self.training.step // self.job.run.stability.checkpoint_steps % len(batches)
        source, batch = sorted(batches.items())[turn]
        first = self.ranks.from_first(batch.ids_BT[0, :PROMPT_TOKENS].tolist())
        model = self.training.model
        model.eval()
        with torch.compiler.set_stance("force_eager"):  # each length would be compiled anew
            ids = generate(
                model, first, SAMPLING, context=self.job.run.phase.sequence_length,
                vocabulary=self.job.run.model.vocab_size, is_end=lambda token: False,
            )  # fmt: skip
        model.train()
        self.training.let_go()
        written = {"source": source, "prompt": decode(first), "text": decode(ids)}
        return {"event": "sample", "step": self.training.step, "phase": self.job.run.phase.name} | written

    def begin_step(self) -> None:
        """Start the profiler before the first step that it is asked for, on rank 0."""
        wanted = self.job.settings.profile_steps
        if wanted and self.ranks.is_first and self.training.step + 1 == wanted[0]:
            activities = [ProfilerActivity.CPU]
            activities += [ProfilerActivity.CUDA] if self.training.device.type == "cuda" else []
            self.profiler = profile(activities=activities)
            self.profiler.start()

    def end_step(self, *, is_last: bool) -> None:
        """Publish the trace after the last step that it is asked for, or the last that there is."""
        wanted = self.job.settings.profile_steps
        if self.profiler is None or not wanted or (self.training.step < wanted[1] and not is_last):
            return
        self.profiler.stop()
        name = f"steps-{wanted[0]}-{self.training.step}-{self.job.attempt}.json"
        path = Path(self.job.scratch, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.profiler.export_chrome_trace(str(path))
        self.job.store.publish_file(path, f"{self.job.folder}/profiles/{name}")
        self.profiler = None
