"""Near duplicates: documents whose word 5-grams overlap by a true Jaccard similarity of at least 0.7 with one kept.

Reads documents of all sources; writes documents without near duplicates, and the verified pairs (dataset
`dedup-near.pairs`). Reason: near_duplicate, with the similarity and the document kept instead. Documents too short
for a shingle (fewer than five words) bypass it; dedup-exact has compared them.

Steps: signatures (per part, kept for later runs; signatures.py) -> bands (exchange) -> edges -> components
(candidates.py) -> members (exchange) -> pairs (verify.py) -> decisions (keepers.py) -> the documents. Components only
say who is compared with whom: nothing is dropped for a neighbour's neighbour (plain components drop 19 % of revision
chains that way). Exchange files are removed as soon as the dataset made from them has its manifest; a new input part
costs its own signatures, the exchanges, and the output parts whose decisions changed.
"""

from typing import Self

from pydantic import BaseModel, Field, JsonValue, model_validator

from tasks.config import check_by_source, for_source
from tasks.dataset import Workspace
from tasks.dedup_near.candidates import connect
from tasks.dedup_near.signatures import sign
from tasks.dedup_near.verify import REASON, verify_pairs
from tasks.documents import DOCUMENT_SCHEMA
from tasks.guard_rail import check_dropped_share
from tasks.keepers import apply_by_part, decide_by_part
from tasks.manifest import Manifest

REASONS = frozenset([REASON])


class NearDedupConfig(BaseModel, frozen=True, extra="forbid"):
    """How alike two documents must be, and which of them stays. Shingles and bands are fixed (candidates.py)."""

    enabled: bool = Field(default=True, description="false: copy the documents through")
    threshold: float = Field(
        default=0.7, ge=0.5, le=1, description="true Jaccard of word 5-grams from which on a document goes"
    )
    priorities: dict[str, int] = Field(
        default={}, description="of near duplicates, the source with the higher number is kept; 0 where none is given"
    )
    max_dropped_ratio: float = Field(
        default=0.9, ge=0, le=1, description="a source of 1,000 documents or more that would lose a larger share stops"
    )
    by_source: dict[str, dict[str, JsonValue]] = Field(default={}, description="other values for one source")

    @model_validator(mode="after")
    def _check(self) -> Self:
        return check_by_source(self)


def drop_near_duplicates(documents: Manifest, *, into: Workspace, config: NearDedupConfig) -> Manifest:
    """Documents of all sources -> documents without near duplicates."""
    dataset = into.dataset(
        "dedup-near", config, inputs={"documents": documents}, module=__name__, schema=DOCUMENT_SCHEMA,
        conservation="documents", reasons=REASONS,
    )  # fmt: skip
    if found := dataset.find():
        return found
    settings = {source: for_source(config, source) for source in documents.sources}
    priorities = {source: config.priorities.get(source, 0) for source in documents.sources}
    with dataset.lease():
        signatures = sign(dataset, documents, {source: own.enabled for source, own in settings.items()})
        components = connect(dataset, signatures)
        pairs = verify_pairs(
            dataset, documents, signatures, components, threshold=config.threshold, priorities=priorities
        )
        decisions = decide_by_part(dataset, "decisions", documents, {"pairs": pairs})
        receipts = apply_by_part(dataset, documents, decisions, threshold=config.threshold)
        limits = {source: own.max_dropped_ratio for source, own in settings.items()}
        check_dropped_share(dataset.stage, receipts, limits)
        return dataset.publish(receipts, extra={"too_short": signatures.extra["too_short"], **components.extra})
