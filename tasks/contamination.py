"""What a model may have seen: for each evaluation set, whether the text it was trained on was cleaned of it.

Read from the lineage in the manifests. A set counts as decontaminated only if every source of every phase was searched
for it and cleaned, and the weights were not imported; otherwise its status stands in the place of its scores.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from tasks.config import merge
from tasks.manifest import Manifest, load_manifest
from tasks.splits import whole_source
from tasks.storage import Storage

DECONTAMINATED, NOT_DECONTAMINATED = "decontaminated", "not decontaminated"


def status_of_sets(
    storage: Storage, trained: Manifest, newer: Sequence[Manifest], wanted: Sequence[str]
) -> dict[str, str]:
    """For each evaluation set whether the training data was decontaminated against it, and for which sources not."""
    names = set(wanted).union(*(manifest.extra["evaluation_sets"] for manifest in newer))
    cleaned: dict[str, set[str]] = {}  # source -> sets that its text was cleaned of
    for source, cleaners in cleaners_of(storage, trained, newer):
        names |= {name for manifest in cleaners for name in manifest.config.get("evaluation_sets", {})}
        sets = set().union(*(cleaned_sets(manifest, source) for manifest in cleaners))
        cleaned[source] = cleaned.get(source, sets) & sets
    if any(manifest.stage == "import" for manifest in ancestors(storage, trained)):
        return dict.fromkeys(sorted(names), f"{NOT_DECONTAMINATED} (imported weights)")
    status = {}
    for name in sorted(names):
        missing = sorted(source for source, sets in cleaned.items() if name not in sets)
        status[name] = f"{NOT_DECONTAMINATED} (sources: {', '.join(missing)})" if missing else DECONTAMINATED
    return status


def status_of_file(storage: Storage, trained: Manifest, newer: Sequence[Manifest], name: str, sha256: str) -> str:
    """The status of one set, given the file that is to be scored: only a search for this very file counts."""
    status = status_of_sets(storage, trained, newer, [name])[name]
    if status != DECONTAMINATED:
        return status
    for source, cleaners in cleaners_of(storage, trained, newer):
        files = {m.external["evaluation_sets"][name] for m in cleaners if name in cleaned_sets(m, source)}
        if sha256 not in files:
            return f"{NOT_DECONTAMINATED} (set {name} of stage decontaminate is another file)"
    return status


def cleaners_of(storage: Storage, trained: Manifest, newer: Sequence[Manifest]) -> Iterator[tuple[str, list[Manifest]]]:
    """For each pack of the training data its source and the datasets of stage decontaminate behind it."""
    replacements = {manifest.digest: manifest for manifest in newer}
    for source, pack in training_packs(storage, trained):
        found = (manifest for manifest in ancestors(storage, pack) if manifest.stage == "decontaminate")
        yield source, [replacements.get(manifest.digest, manifest) for manifest in found]


def cleaned_sets(decontaminated: Manifest, source: str) -> set[str]:
    """Evaluation sets whose items were taken out of the text of one source; only reporting them is not enough."""
    general = decontaminated.config
    config: dict[str, Any] = merge(general, general.get("by_source", {}).get(whole_source(source), {}))
    if not config.get("enabled", True):
        return set()
    return {name for name, settings in config.get("evaluation_sets", {}).items() if settings.get("action") != "report"}


def training_packs(storage: Storage, trained: Manifest) -> Iterator[tuple[str, Manifest]]:
    """(source, pack) of everything that a phase and those before it were trained on."""
    for entry in trained.inputs:
        manifest = load_manifest(storage, f"{entry['stage']}/{entry['fingerprint']}")
        if manifest.stage in ("train", "fork"):
            yield from training_packs(storage, manifest)
        elif manifest.stage == "pack":
            yield manifest.config["request"]["source"], manifest


def ancestors(storage: Storage, manifest: Manifest) -> Iterator[Manifest]:
    """Every dataset that this one was made from, once each."""
    seen: set[str] = set()
    waiting = [manifest]
    while waiting:
        for entry in waiting.pop().inputs:
            reference = f"{entry['stage']}/{entry['fingerprint']}"
            if reference not in seen:
                seen.add(reference)
                waiting.append(load_manifest(storage, reference))
                yield waiting[-1]
