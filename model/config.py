"""The settings of a model and of its training. No torch here, so that flows and `plan` validate a recipe without it.

A size is a row of `MODEL_SIZES`: `model: {size: demo, vocab_size: 8192}` takes the row and replaces what is given
beside it. The resolved config holds every number, so a fingerprint is the same for a size and for its numbers.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, Field, JsonValue, model_validator

# Name -> fields of ModelConfig. `demo` trains 2 million tokens on two CPU cores in about three minutes.
MODEL_SIZES: dict[str, dict[str, int]] = {
    name: dict(zip(("num_layers", "width", "num_heads", "num_kv_heads", "mlp_width", "vocab_size"), row, strict=True))
    for name, row in {
        "tiny": (2, 64, 4, 2, 192, 512),
        "demo": (4, 192, 6, 2, 512, 4096),
        "100m": (12, 768, 12, 4, 2048, 32768),
        "300m": (24, 1024, 16, 4, 2816, 32768),
        "1b": (24, 2048, 16, 8, 5632, 65536),
        "7b": (32, 4096, 32, 8, 14336, 131072),
    }.items()
}
MLP_WIDTH_STEP = 64  # matrices whose sides are multiples of 64 run at full speed on tensor cores and with AVX-512


class ModelConfig(BaseModel, frozen=True, extra="forbid"):
    """The shape of a decoder-only transformer: RMSNorm pre-norm, RoPE, grouped-query attention, SwiGLU, no biases."""

    num_layers: int = Field(ge=1, description="transformer blocks")
    width: int = Field(ge=2, description="size of the residual stream")
    num_heads: int = Field(ge=1, description="query heads")
    num_kv_heads: int = Field(ge=1, description="key and value heads; num_heads unless given; 1 = multi-query")
    mlp_width: int = Field(ge=1, description="inner size of the SwiGLU; 8/3 of width, rounded up to 64, unless given")
    vocab_size: int = Field(ge=256, description="rows of the embedding; at least the size of the tokenizer")
    norm_eps: float = Field(1e-5, gt=0, le=1e-2, description="added to the mean square in RMSNorm (Llama's value)")
    rope_base: float = Field(10_000.0, gt=1, description="base of the rotary frequencies; a phase may raise it")
    tie_embeddings: bool = Field(True, description="one matrix for input and output: it is most of a small model")

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """Takes the numbers of `size`, then derives what was left out."""
        if not isinstance(given, dict):
            return given
        fields = dict(given)
        if (size := fields.pop("size", None)) is not None:
            if size not in MODEL_SIZES:
                raise ValueError(f"size {size!r} is unknown; choose one of {', '.join(MODEL_SIZES)}")
            fields = MODEL_SIZES[size] | fields
        if fields.get("num_kv_heads") is None and "num_heads" in fields:
            fields["num_kv_heads"] = fields["num_heads"]
        if fields.get("mlp_width") is None and isinstance(fields.get("width"), int):
            fields["mlp_width"] = -(-fields["width"] * 8 // (3 * MLP_WIDTH_STEP)) * MLP_WIDTH_STEP
        return fields

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.width % self.num_heads:
            raise ValueError(f"width {self.width} must be divisible by num_heads {self.num_heads}")
        if self.head_width % 2:
            raise ValueError(f"width / num_heads = {self.head_width} must be even: RoPE rotates pairs")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} must be divisible by num_kv_heads {self.num_kv_heads}")
        return self

    @classmethod
    def of_size(cls, size: str, **fields: JsonValue) -> Self:
        """The named size, with other values for the given fields."""
        return cls.model_validate({"size": size, **fields})

    @property
    def head_width(self) -> int:
        """Size of one head."""
        return self.width // self.num_heads

    @property
    def num_parameters(self) -> int:
        """All weights; a tied matrix counts once."""
        attention = self.width * self.head_width * 2 * (self.num_heads + self.num_kv_heads)
        block = attention + 3 * self.width * self.mlp_width + 2 * self.width
        embeddings = self.vocab_size * self.width * (1 if self.tie_embeddings else 2)
        return embeddings + self.num_layers * block + self.width
