"""Other tasks, scored by lm-evaluation-harness itself on a run's export (`basemill harness RUN --tasks ...`).

The harness is no dependency: its command line is looked for in BASEMILL_LM_EVAL and on the PATH, and runs in a process
of its own, with whatever options the user adds. What it writes is kept beside the model:

    export/<fingerprint>/harness/<time>/results_....json    as the harness wrote it; samples too, where asked for
                                       /record.json         command, versions, and each task's scores and status

The status says whether the training text was cleaned of an evaluation set of the task's name; the harness fetches its
data itself, so that a name is all there is to go by. Scores are shown beside it, never without.
"""

import json
import math
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tasks.contamination import NOT_DECONTAMINATED, status_of_sets
from tasks.errors import ConfigError, DataError
from tasks.manifest import Manifest, load_manifest
from tasks.runs import RunRecord, new_run_id
from tasks.storage import Storage

HARNESS_VERSION = "0.4.13"  # the one that tasks/evaluate/task_scores.py is compared with
VARIABLE = "BASEMILL_LM_EVAL"
RECORD = "record.json"
STDERR = 2  # the file descriptor: stdout is for our own answer


class HarnessScore(BaseModel, frozen=True):
    """What the harness found for one task or group of tasks."""

    task: str
    status: str
    metrics: dict[str, float | str]  # as the harness names them, filter included: "acc,none"


class HarnessRecord(BaseModel, frozen=True):
    """One run of the harness."""

    created: str
    run_id: str
    export: str
    command: list[str]
    lm_eval: str
    scores: list[HarnessScore]
    files: list[str]


def run_harness(storage: Storage, record: RunRecord, tasks: str, arguments: Sequence[str]) -> HarnessRecord:
    """Score `tasks` (names joined by commas) on the export of a run; `arguments` go to the harness as they are.

    Raises ConfigError when the harness is not installed or the run has no export, DataError when it fails.
    """
    program = find_program()
    exported = _exported(storage, record)
    created = new_run_id()
    with storage.scratch_folder() as scratch:
        model = {"pretrained": str(local_folder(storage, exported, scratch / "model"))}
        asked = ["--model", "hf", "--model_args", json.dumps(model), "--tasks", tasks, *arguments]
        _execute([program, *asked, "--output_path", str(scratch / "out")])
        files = sorted(path for path in (scratch / "out").rglob("*.json*") if path.is_file())
        results = [path for path in files if path.name.startswith("results")]
        if not results:
            raise DataError(f"{program} ended well but wrote no results_*.json; it should be lm-eval {HARNESS_VERSION}")
        found = _read_results(results[-1])
        own = HarnessRecord(
            created=created,
            run_id=record.run_id,
            export=exported.reference,
            command=["lm_eval", *asked],
            lm_eval=str(found.get("lm_eval_version", "unknown")),
            scores=scores_of(found["results"], _status(storage, record, exported, list(found["results"]))),
            files=[path.name for path in files],
        )
        for path in files:
            storage.publish_file(path, f"{_folder(exported)}/{created}/{path.name}")
        storage.write_bytes(f"{_folder(exported)}/{created}/{RECORD}", own.model_dump_json(indent=1).encode())
    return own


def find_program() -> str:
    """The harness's command line. Raises ConfigError that says what to install."""
    given = os.environ.get(VARIABLE)
    if program := shutil.which(given or "lm_eval"):
        return program
    raise ConfigError(
        f"lm-evaluation-harness is not installed ({f'{VARIABLE}={given}' if given else 'no lm_eval on the PATH'}). It "
        "needs an environment of its own: python3 -m venv lm_eval && lm_eval/bin/pip install "
        f"'lm_eval[hf]=={HARNESS_VERSION}', then {VARIABLE}=$PWD/lm_eval/bin/lm_eval"
    )


def local_folder(storage: Storage, exported: Manifest, scratch: Path) -> Path:
    """The exported folder on this machine: where it lies, or a copy of what an object store holds."""
    if not storage.is_s3:
        return Path(storage.path(exported.reference))
    scratch.mkdir()
    for part in exported.parts:
        with storage.open_input(exported.file_path(part.key)) as source, (scratch / part.key).open("wb") as target:
            shutil.copyfileobj(source, target)
    return scratch


def scores_of(results: Mapping[str, Mapping[str, Any]], status: Mapping[str, str]) -> list[HarnessScore]:
    """A line per task, by name; what is no figure (aliases, names) is left out."""
    lines = []
    for task, found in sorted(results.items()):
        metrics = {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value  # none in JSON
            for name, value in found.items()
            if "," in name and isinstance(value, (int, float, str))
        }
        lines.append(HarnessScore(task=task, status=status[task], metrics=metrics))
    return lines


def harness_records(storage: Storage, export: str) -> Iterator[HarnessRecord]:
    """What the harness found for an export, the latest last."""
    for file in storage.list_files(f"{export}/harness"):
        if file.key.endswith(f"/{RECORD}"):
            yield HarnessRecord.model_validate_json(storage.read_bytes(file.key))


def metrics_text(score: HarnessScore) -> str:
    """`acc 0.2512 ± 0.0089`, one after the other; errors beside what they belong to."""
    texts = []
    for name, value in score.metrics.items():
        metric, _, filter_name = name.partition(",")
        if not metric.endswith("_stderr"):
            error = score.metrics.get(f"{metric}_stderr,{filter_name}")
            shown = f"{metric} {value:.4f}" if isinstance(value, (int, float)) else f"{metric} {value}"
            texts.append(shown + (f" ± {error:.4f}" if isinstance(error, float) else ""))
    return ", ".join(texts)


def _read_results(path: Path) -> dict[str, Any]:
    """What the harness wrote. Raises DataError when it is no such file."""
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path.name} of the harness is no JSON: {error}") from error
    if not (isinstance(found, dict) and isinstance(found.get("results"), dict)):
        raise DataError(f"{path.name} of the harness has no results; it should be lm-eval {HARNESS_VERSION}")
    return found


def _exported(storage: Storage, record: RunRecord) -> Manifest:
    lines = record.datasets_of("export")
    if not lines:
        raise ConfigError(f"run {record.run_id} has no export; see `basemill show {record.run_id}`")
    return load_manifest(storage, lines[-1].reference)


def _folder(exported: Manifest) -> str:
    return f"{exported.reference}/harness"


def _status(storage: Storage, record: RunRecord, exported: Manifest, names: list[str]) -> dict[str, str]:
    [trained] = [entry for entry in exported.inputs if entry["role"] == "trained"]
    newer = [load_manifest(storage, line.reference) for line in record.datasets_of("decontaminate")]
    manifest = load_manifest(storage, f"{trained['stage']}/{trained['fingerprint']}")
    found = status_of_sets(storage, manifest, newer, names)
    return {name: found.get(name, NOT_DECONTAMINATED) for name in names}


def _execute(command: list[str]) -> None:
    """Run the harness; what it says goes to stderr, as it comes. Raises DataError when it fails."""
    done = subprocess.run(command, stdout=STDERR, check=False)
    if done.returncode:
        raise DataError(f"{command[0]} ended with exit status {done.returncode}; what it said stands above")
