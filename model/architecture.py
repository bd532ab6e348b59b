"""The shape of a model. No torch here, so that flows and `plan` validate a recipe without it.

A size is a row of `MODEL_SIZES`: `model: {size: demo, vocab_size: 8192}` takes the row and replaces what is given
beside it. The resolved config holds every number, so a fingerprint is the same for a size and for its numbers. A size
also knows the learning rate, the batch and the horizon that suit it (`TRAINING_OF_SIZE`), which a recipe may leave out.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple, Self

from pydantic import BaseModel, Field, JsonValue, model_validator

# Name -> fields of ModelConfig. `demo` trains 2 million tokens on two CPU cores in about three minutes.
MODEL_SIZES: dict[str, dict[str, int]] = {
    name: dict(zip(("num_layers", "width", "num_heads", "num_kv_heads", "mlp_width", "vocab_size"), row, strict=True))
    for name, row in {
        "tiny": (2, 64, 4, 2, 192, 512),
        "demo": (4, 192, 3, 1, 512, 4096),
        "100m": (12, 768, 12, 4, 2048, 32768),
        "300m": (24, 1024, 16, 4, 2816, 32768),
        "1b": (24, 2048, 16, 8, 5632, 65536),
        "7b": (32, 4096, 32, 8, 14336, 131072),
    }.items()
}


class SizeTraining(NamedTuple):
    """What a size trains with unless the recipe says otherwise."""

    lr: float
    batch_tokens: int
    tokens: int


# Peak learning rates of GPT-3's models of that size (2005.14165, table 2.1) and batches near theirs, as powers of two;
# horizons of 20 tokens per parameter (2203.15556). tiny and demo: measured here.
TRAINING_OF_SIZE = {
    "tiny": SizeTraining(1e-2, 1 << 12, 500_000),
    "demo": SizeTraining(3e-3, 1 << 12, 2_000_000),
    "100m": SizeTraining(6e-4, 1 << 19, 2_000_000_000),
    "300m": SizeTraining(3e-4, 1 << 19, 6_000_000_000),
    "1b": SizeTraining(2e-4, 1 << 20, 25_000_000_000),
    "7b": SizeTraining(1.2e-4, 1 << 21, 150_000_000_000),
}
MLP_WIDTH_STEP = 64  # matrices whose sides are multiples of 64 run at full speed on tensor cores and with AVX-512

Positions = Literal["rope", "sinusoidal", "learned"]
Activation = Literal["swiglu", "gelu", "relu"]
Initialization = Literal["gpt2", "normal", "current_depth", "fan_in", "small"]


class ExpertsConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """Experts in the place of each MLP: a softmax router picks some per token, their gates are made to sum to 1."""

    count: int = Field(ge=2, le=1024, description="experts of a layer; each has the inner size mlp_width")
    active: int = Field(ge=1, description="experts that a token passes (top-k)")
    balance_weight: float = Field(
        default=0.01, ge=0, description="weight of the balancing loss, 1 when even (Switch Transformer, 2101.03961)"
    )
    router_z_weight: float = Field(
        default=1e-3, ge=0, description="weight of the router's mean logsumexp squared (ST-MoE, 2202.08906)"
    )
    bias_rate: float = Field(
        default=0.0,
        ge=0,
        le=0.1,
        description="loss-free balancing (2408.15664): step of a bias that only selection sees, 1e-3 in DeepSeek-V3",
    )

    @model_validator(mode="after")
    def _check_active(self) -> Self:
        if self.active > self.count:
            raise ValueError(f"active {self.active} exceeds count {self.count}: a token can't pass more experts")
        return self


class ModelConfig(BaseModel, frozen=True, extra="forbid", strict=True):
    """A decoder-only pre-norm transformer. As it stands: RMSNorm, RoPE, grouped-query attention, SwiGLU, no biases."""

    SHORT_KEYS: ClassVar[tuple[str, ...]] = ("size",)  # read, and resolved into others

    num_layers: int = Field(ge=1, description="transformer blocks")
    width: int = Field(ge=2, description="size of the residual stream")
    num_heads: int = Field(ge=1, description="query heads")
    num_kv_heads: int = Field(ge=1, description="key and value heads; num_heads unless given; 1 = multi-query")
    head_width: int = Field(ge=1, description="size of one head; width / num_heads unless given")
    mlp_width: int = Field(
        ge=1, description="inner size of the MLP; 8/3 of width (SwiGLU, rounded up to 64) or 4 times width unless given"
    )
    vocab_size: int = Field(ge=256, description="tokens that the model knows; at least the size of the tokenizer")
    vocab_multiple: int = Field(
        default=64,
        ge=1,
        le=1024,
        description="rows of the embedding are padded up to a multiple, for speed; no softmax sees the padding",
        json_schema_extra={"neutral": 64},
    )
    positions: Positions = Field(
        default="rope",
        description="rope: rotated queries and keys; sinusoidal, learned: added to the embedding",
        json_schema_extra={"neutral": "rope"},
    )
    max_positions: int = Field(
        default=2048,
        ge=1,
        description="rows of the table of learned positions; other kinds have no limit",
        json_schema_extra={"neutral": 2048},
    )
    rope_base: float = Field(default=10_000.0, gt=1, description="base of the rotary frequencies; a phase may raise it")
    norm: Literal["rms", "layer"] = Field(
        default="rms", description="RMSNorm or LayerNorm, before each sub-layer", json_schema_extra={"neutral": "rms"}
    )
    norm_eps: float = Field(default=1e-5, gt=0, le=1e-2, description="added to the mean square in a norm (Llama's)")
    qk_norm: bool = Field(
        default=False,
        description="RMSNorm of each head of queries and keys, before RoPE: bounds attention logits (2309.14322)",
        json_schema_extra={"neutral": False},
    )
    activation: Activation = Field(
        default="swiglu",
        description="swiglu has a gate beside it; gelu (tanh form) and relu have none",
        json_schema_extra={"neutral": "swiglu"},
    )
    biases: bool = Field(
        default=False, description="of all linear layers and LayerNorms", json_schema_extra={"neutral": False}
    )
    dropout: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="of embedding, attention weights and residual branches; one epoch of text needs none",
        json_schema_extra={"neutral": 0.0},
    )
    tie_embeddings: bool = Field(default=True, description="one matrix for input and output: most of a small model")
    experts: ExpertsConfig | None = Field(
        default=None, description="mixture of experts in the place of each MLP", json_schema_extra={"neutral": None}
    )
    initialization: Initialization = Field(
        default="gpt2", description="spread of the first weights", json_schema_extra={"neutral": "gpt2"}
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """Takes the numbers of `size`, then derives what was left out."""
        if not isinstance(given, dict):
            return given
        fields = dict(given)
        if (size := fields.pop("size", None)) is not None:
            if not isinstance(size, str) or size not in MODEL_SIZES:
                raise ValueError(f"size {size!r} is unknown; choose one of {', '.join(MODEL_SIZES)}")
            fields = _numbers_of(size, fields) | fields
        width, heads = fields.get("width"), fields.get("num_heads")
        if fields.get("num_kv_heads") is None and heads is not None:
            fields["num_kv_heads"] = heads
        if fields.get("head_width") is None and isinstance(width, int) and isinstance(heads, int) and heads > 0:
            if width % heads:
                raise ValueError(f"width {width} must be divisible by num_heads {heads}, or head_width be given")
            fields["head_width"] = width // heads
        if fields.get("mlp_width") is None and isinstance(width, int):
            is_gated = fields.get("activation", "swiglu") == "swiglu"
            fields["mlp_width"] = -(-width * 8 // (3 * MLP_WIDTH_STEP)) * MLP_WIDTH_STEP if is_gated else 4 * width
        return fields

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} must be divisible by num_kv_heads {self.num_kv_heads}")
        if self.positions == "rope" and self.head_width % 2:
            raise ValueError(f"head_width (width / num_heads) {self.head_width} must be even: RoPE rotates pairs")
        if self.positions == "sinusoidal" and self.width % 2:
            raise ValueError(f"width {self.width} must be even: sinusoidal positions are pairs of sine and cosine")
        return self

    @model_validator(mode="after")
    def _check_experts(self) -> Self:
        if self.experts and self.activation != "swiglu":
            raise ValueError(f"activation {self.activation!r} with experts: experts are SwiGLU; leave activation out")
        if self.experts and self.biases:
            raise ValueError("biases true with experts: experts have none; leave biases out")
        return self

    @classmethod
    def of_size(cls, size: str, **fields: JsonValue) -> Self:
        """The named size, with other values for the given fields."""
        return cls.model_validate({"size": size, **fields})

    def check_length(self, length: int) -> None:
        """Raises ValueError when rows of so many tokens have no learned position."""
        if self.positions == "learned" and length > self.max_positions:
            raise ValueError(f"max_positions {self.max_positions} is smaller than a row of {length} tokens")

    @property
    def vocab_rows(self) -> int:
        """Rows of the embedding: vocab_size and its padding."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

    @property
    def num_parameters(self) -> int:
        """All weights; a tied matrix counts once, padding counts."""
        return self._count(self.experts.count if self.experts else 1)

    @property
    def num_active_parameters(self) -> int:
        """Weights that a token meets: with experts, only those that it passes."""
        return self._count(self.experts.active if self.experts else 1)

    def _count(self, experts: int) -> int:
        heads = self.head_width * (2 * self.num_heads + 2 * self.num_kv_heads)
        norm = self.width * (2 if self.norm == "layer" and self.biases else 1)
        matrices = 3 if self.activation == "swiglu" else 2
        block = self.width * heads + experts * matrices * self.width * self.mlp_width + 2 * norm
        block += 2 * self.head_width if self.qk_norm else 0
        block += self.width * self.experts.count if self.experts else 0
        if self.biases:
            block += heads - self.head_width * self.num_heads + self.width  # of qkv and of the output projection
            block += self.mlp_width * (matrices - 1) + self.width
        embeddings = self.vocab_rows * self.width * (1 if self.tie_embeddings else 2)
        positions = self.max_positions * self.width if self.positions == "learned" else 0
        return embeddings + positions + self.num_layers * block + norm


def _numbers_of(size: str, given: dict[str, Any]) -> dict[str, Any]:
    """The row of a size, without the numbers that follow from fields given beside it."""
    left_out = {"mlp_width"} if given.get("activation", "swiglu") != "swiglu" else set()
    return {name: value for name, value in MODEL_SIZES[size].items() if name not in left_out}
