"""Training of other shapes and wrappings: experts with losses and biases, dropout, DDP, through stops and resumes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from model.architecture import ModelConfig
from model.attention import lay_out
from model.batches import PackReader
from model.hf import build_theirs
from model.initialization import draw
from model.job import Job, order_of
from model.loss import IGNORED
from model.schedule import plan_phase
from model.trainer import train
from model.transformer import Transformer
from tests.model.test_trainer import (
    LENGTH,
    MODEL,
    ROWS,
    STEPS,
    WORKER,
    digest_of,
    exact_metrics,
    losses_of,
    make_job,
    phase_of,
    tensors_of,
)

__all__ = ["make_job"]
EXPERTS: dict[str, Any] = {"experts": {"count": 4, "active": 2, "bias_rate": 1e-3}, "mlp_width": 32, "qk_norm": True}
GPT2: dict[str, Any] = {"positions": "learned", "norm": "layer", "biases": True, "activation": "gelu"}


def with_model(job: Job, **fields: Any) -> Job:
    model = ModelConfig.model_validate(MODEL.model_dump() | fields)
    return replace(job, run=job.run.model_copy(update={"model": model}))


@pytest.mark.parametrize("fields", [EXPERTS | {"dropout": 0.1}, GPT2 | {"dropout": 0.1}], ids=["experts", "gpt2"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_stop_changes_no_bit_with_dropout(make_job: Any, fields: dict[str, Any], precision: str) -> None:
    """nanoGPT#467: masks are drawn from the seed and the position; the routers' biases are in the checkpoint."""
    straight = with_model(make_job(precision, folder="train/straight"), **fields)
    train(straight)
    stopped = with_model(make_job(precision, folder="train/stopped"), **fields)
    assert train(stopped, lambda: True).status == "stopped"
    assert train(replace(stopped, attempt="a2")).status == "finished"
    assert digest_of(stopped) == digest_of(straight)
    assert exact_metrics(stopped).equals(exact_metrics(straight))


def test_losses_and_loads_of_experts_are_noted_apart(make_job: Any) -> None:
    job = with_model(make_job(), **EXPERTS)
    train(job)
    metrics = exact_metrics(job).to_pydict()
    assert metrics["balance_loss"] == pytest.approx([1.0] * STEPS, abs=0.1)
    assert metrics["router_z_loss"][0] == pytest.approx(1.92, abs=0.1)  # (ln 4) squared: logits begin near 0
    for loads in metrics["expert_loads"]:
        assert [sum(layer) for layer in loads] == pytest.approx([1.0, 1.0])
        assert all(0 < share < 0.5 for layer in loads for share in layer)
    biases = [tensor for name, tensor in tensors_of(job, STEPS).items() if name.endswith("router.bias_E")]
    assert len(biases) == 2
    assert all(0 < bias.abs().max() <= STEPS * 1e-3 + 1e-9 for bias in biases)
    dense = make_job(folder="train/dense")
    train(dense)
    assert exact_metrics(dense)["expert_loads"].null_count == STEPS


def test_two_ranks_share_experts_and_replicas_like_one_process(make_job: Any, rank_processes: Any) -> None:
    """Sharded, and whole on each rank (DDP); what one wrote the other resumes."""
    one = with_model(make_job(folder="train/one"), **EXPERTS)
    train(one)
    for parallel in ("fsdp", "ddp"):
        two = with_model(make_job(folder=f"train/{parallel}", settings={"parallel": parallel}), **EXPERTS)
        rank_processes.run(WORKER, 2, JOB=two)
        assert losses_of(two) == pytest.approx(losses_of(one), abs=2e-5)
        assert exact_metrics(two)["expert_loads"][0] == exact_metrics(one)["expert_loads"][0]
        for name, tensor in tensors_of(one, STEPS).items():
            assert torch.allclose(tensors_of(two, STEPS)[name], tensor, atol=2e-3), name


def test_first_twenty_losses_are_those_of_transformers(make_job: Any) -> None:
    """The same weights, rows, documents and optimizer: transformers' Llama in a loop of its own."""
    job = make_job(phase=phase_of(steps=20))
    train(job)
    llama = build_theirs(MODEL, drawn_weights(job), LENGTH, MODEL.rope_base)
    matrices = [p for name, p in llama.named_parameters() if p.ndim > 1 and "embed" not in name]
    others = [p for name, p in llama.named_parameters() if not any(p is matrix for matrix in matrices)]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    reader, losses = PackReader(job.store, order_of(job.run, job.packs, {})), []
    for step, plan in enumerate(plan_phase(job.run)):
        batch = reader.read(np.arange(step * ROWS, (step + 1) * ROWS))
        positions_BT = lay_out(batch.document_starts, batch.ids_BT, torch.float32).positions_BT
        first_BT = torch.arange(LENGTH) - positions_BT
        masked_BTT = (first_BT[:, :, None] != first_BT[:, None, :]) | torch.ones(LENGTH, LENGTH).triu(1).bool()
        mask_B1TT = torch.zeros(masked_BTT.shape).masked_fill(masked_BTT, float("-inf"))[:, None]
        out = llama(batch.ids_BT, attention_mask=mask_B1TT, position_ids=positions_BT, use_cache=False)
        nll = F.cross_entropy(out.logits.flatten(0, 1), batch.targets_BT.flatten(), reduction="sum") / batch.num_targets
        z = (out.logits.logsumexp(-1).square() * (batch.targets_BT != IGNORED)).sum() / batch.num_targets
        (nll + 1e-4 * z).backward()
        torch.nn.utils.clip_grad_norm_(llama.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = plan.lr
        optimizer.step()
        optimizer.zero_grad()
        losses.append(nll.item())
    assert losses_of(job, 20) == pytest.approx(losses, abs=1e-5)
    assert losses[-1] < losses[0] - 0.5


def drawn_weights(job: Job) -> dict[str, torch.Tensor]:
    return {
        name: draw(name, tensor.shape, job.run.model, job.run.seed)
        for name, tensor in Transformer(job.run.model).state_dict().items()
    }
