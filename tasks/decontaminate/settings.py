"""Settings of the stage "decontaminate"."""

from pydantic import BaseModel, Field, JsonValue, model_validator

from tasks.config import check_overrides, for_source
from tasks.decontaminate.evaluation_sets import CANARY_SET, EvaluationSetConfig

PER_SOURCE = ("action", "min_overlap")  # of a set: what its files hold is the same for all sources


class DecontaminateConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """Against what documents are decontaminated, and how."""

    enabled: bool = Field(default=True, description="false: documents pass unchanged")
    evaluation_sets: dict[str, EvaluationSetConfig] = Field(default={}, description="name: file, columns, action")
    max_documents: int = Field(default=10, ge=1, description="n-grams in more documents than this are no evidence")
    margin_chars: int = Field(default=200, ge=0, description="cut: characters taken away on both sides of a span")
    min_remaining_chars: int = Field(default=200, ge=0, description="cut: a document that is left shorter is dropped")
    max_dropped_ratio: float = Field(
        default=0.9, ge=0, le=1, description="a source of 1,000 documents or more that would lose a larger share stops"
    )
    by_source: dict[str, dict[str, JsonValue]] = Field(default={}, description="other values for one source")

    @model_validator(mode="after")
    def _check(self) -> "DecontaminateConfig":
        if CANARY_SET in self.evaluation_sets:
            raise ValueError(f"evaluation_sets: {CANARY_SET!r} is reserved")
        check_overrides(self, "by_source", ("by_source", "max_documents"))
        for source in self.by_source:
            for name, own in for_source(self, source).evaluation_sets.items():
                base = self.evaluation_sets.get(name)
                if base is None or own.model_copy(update={key: getattr(base, key) for key in PER_SOURCE}) != base:
                    raise ValueError(
                        f"by_source.{source}.evaluation_sets.{name}: one index serves all sources; only "
                        f"{' and '.join(PER_SOURCE)} of a set can differ"
                    )
        return self
