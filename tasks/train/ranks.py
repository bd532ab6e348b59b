"""Where the ranks of a training run: in this process, in workers of Ray Train, or in processes of torchrun.

Whoever starts and connects them, each rank calls the same trainer with the same job, and what happened is read from
storage. Under Ray Train the ranks are placed from outside and asked to stop by a file. torchrun has started them before
the job is known: rank 0 decides what is trained (it plans, holds the lease, publishes) and tells the others through
torchrun's own store; each phase gets a process group of its own.
"""

import logging
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from typing import Any

from model.job import Job, Outcome, Settings
from model.scratch import clear_abandoned, scratch_folder
from tasks.errors import ConfigError, DataError, StorageError, WorkerLost
from tasks.parallel import start_ray

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
STOP_GRACE_SECONDS = 8.0  # for the ranks to save at a step boundary before they are killed
WAIT = timedelta(days=365)  # followers wait for the leader, who may wait for a lease; torchrun ends them with it


def train_here(job: Job, should_stop: Callable[[], bool]) -> Outcome:
    """One rank: this process alone, or one worker of a group. Raises DataError, StorageError."""
    from model.checkpoint import NoSoundCheckpoint  # late: torch, which a cached run never loads
    from model.trainer import train

    clear_abandoned(Path(job.scratch).parent)
    try:
        with scratch_folder(Path(job.scratch)):
            return train(job, should_stop)
    except (NoSoundCheckpoint, ValueError, FileNotFoundError) as error:
        raise DataError(f"train: {error}") from error
    except OSError as error:
        raise StorageError(f"train: {error}") from error


# --- Ray Train -----------------------------------------------------------------------------------------------------


def train_rank(loop: dict[str, Any]) -> None:
    """What Ray Train runs in each worker. An error that no retry can mend is left in storage for the driver."""
    job: Job = loop["job"]
    try:
        train_here(job, partial(is_asked_to_stop, job))
    except DataError as error:
        job.store.create(failed_key(job), str(error).encode())
        raise


def is_asked_to_stop(job: Job) -> bool:
    """Whether the driver asks the ranks to save and end. A store that fails is asked again."""
    try:
        return job.store.exists(stop_key(job))
    except StorageError as error:
        logger.warning("train: asked in vain whether to stop: %s", error)
        return False


def stop_key(job: Job) -> str:
    """While this file exists the ranks save and end."""
    return f"{job.folder}/stop-{job.attempt}"


def failed_key(job: Job) -> str:
    """Why an attempt failed, where its data was wrong."""
    return f"{job.folder}/failed-{job.attempt}"


def fit(job: Job) -> None:
    """Place and connect the ranks with Ray Train, and wait for their end; runs in a Ray task that takes no CPU."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig  # late: half a second, and only here
    from ray.train.torch import TorchTrainer

    from tasks.train.ray_backend import SavingTorchConfig

    is_cuda = job.settings.device == "cuda"
    with scratch_folder(Path(f"{job.scratch}-ray")) as folder:
        TorchTrainer(
            train_rank,
            train_loop_config={"job": job},
            torch_config=SavingTorchConfig(backend="nccl" if is_cuda else "gloo"),
            scaling_config=ScalingConfig(num_workers=job.settings.ranks, use_gpu=is_cuda),
            run_config=RunConfig(
                name=f"train-{job.attempt}",  # unique: Ray resumes a run of the same name by itself
                storage_path=str(folder),
                failure_config=FailureConfig(max_failures=0),  # the stage owns the retries
            ),
        ).fit()


def train_on_ray(job: Job, should_stop: Callable[[], bool]) -> None:
    """Ray is driven from a helper thread, so that a signal reaches the main one; a stop first asks, then kills."""
    ray = start_ray()
    task = ray.remote(num_cpus=0, max_retries=0)(fit).remote(job)
    errors: list[BaseException] = []
    thread = threading.Thread(target=_await, args=(ray, task, errors), name="train-driver", daemon=True)
    thread.start()
    try:
        while thread.is_alive() and not should_stop():
            thread.join(POLL_SECONDS)
    finally:
        if thread.is_alive():
            job.store.write_bytes(stop_key(job), b"")
            thread.join(STOP_GRACE_SECONDS)
            ray.cancel(task, force=True)
            thread.join()
            job.store.delete(stop_key(job))
        shutil.rmtree(f"{job.scratch}-ray", ignore_errors=True)
    if errors and not should_stop():
        if job.store.exists(failed_key(job)):
            raise DataError(job.store.read_bytes(failed_key(job)).decode())
        raise WorkerLost(f"training workers died: {str(errors[0]).strip().splitlines()[-1]}") from errors[0]


def _await(ray: Any, task: Any, errors: list[BaseException]) -> None:
    try:
        ray.get(task)
    except ray.exceptions.RayError as error:
        errors.append(error)


# --- torchrun ------------------------------------------------------------------------------------------------------


def is_under_torchrun() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def settings_under_torchrun(settings: Settings) -> Settings:
    """The settings with as many ranks as torchrun started. Raises ConfigError when other ones are asked for."""
    import torch  # late: a cached run never loads it

    ranks = int(os.environ["WORLD_SIZE"])
    if settings.ranks not in (None, ranks):
        raise ConfigError(f"BASEMILL_TRAIN asks for {settings.ranks} ranks, torchrun started {ranks}; leave ranks out")
    device = "cuda" if torch.cuda.is_available() else settings.device
    return settings.model_copy(update={"ranks": ranks, "device": device})


def cpus_under_torchrun() -> int:
    """CPUs of all hosts, taken to be like this one."""
    hosts = int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"])
    return hosts * (os.cpu_count() or 1)


def lead(job: Job, should_stop: Callable[[], bool]) -> None:
    """Rank 0: tell the others to train this job, and train it with them."""
    place = next(_numbers())
    _meeting_point().set(_task_key(place), pickle.dumps(job))
    _join(job, place)
    train_here(job, should_stop)


def dismiss() -> None:
    """Rank 0: there is nothing more to train."""
    _meeting_point().set(_task_key(next(_numbers())), b"")


def follow() -> None:
    """Another rank: train what rank 0 says until it says that it was all. Raises WorkerLost when it was stopped."""
    for place in _numbers():
        store = _meeting_point()
        store.set_timeout(WAIT)
        task = store.get(_task_key(place))
        if not task:
            return
        job: Job = pickle.loads(task)
        _join(job, place)
        if train_here(job, lambda: False).status == "stopped":
            raise WorkerLost("training was stopped from outside before its end; it resumes from the newest checkpoint")


def _task_key(place: int) -> str:
    return f"basemill-task-{place}"


@lru_cache(maxsize=1)
def _numbers() -> "count[int]":
    """Numbers of the jobs of this process, counted alike on every rank."""
    return count(1)


@lru_cache(maxsize=1)
def _meeting_point() -> Any:
    """The key-value store through which the processes of torchrun meet."""
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(rendezvous("env://"))
    return store


def _join(job: Job, place: int) -> None:
    """A process group for one job: keys of an earlier group in the store must not be met again."""
    import torch
    import torch.distributed as dist

    is_cuda = job.settings.device == "cuda"
    if is_cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(
        "nccl" if is_cuda else "gloo",
        store=dist.PrefixStore(f"basemill-group-{place}", _meeting_point()),  # type: ignore[attr-defined]
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
