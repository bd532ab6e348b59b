"""What `basemill schedule` prints."""

from collections.abc import Sequence

from flows.display import MEGABYTE, say, say_mixture, say_table
from tasks.schedule import Forecast, PhaseForecast
from tasks.schedule.page import CURVES, duration, series_of, strip


def say_forecast(forecast: Forecast) -> None:
    """Totals, curves, phases, sources, memory and checkpoints."""
    active = forecast.active_parameters
    told = "all active" if active == forecast.parameters else f"{active:,} of them active for a token"
    why = " (no training of this model at this length has finished in this root)" if forecast.seconds is None else ""
    say(
        f"{forecast.recipe}: {forecast.parameters:,} parameters, {told}; {forecast.tokens:,} tokens, "
        f"{forecast.flops:.3g} FLOPs, time {duration(forecast.seconds)}{why}\n"
    )
    for name, reading in CURVES.items():
        series = series_of(forecast, reading)
        top = max(y for line in series for y in line.ys)
        say(f"{name:<16} {strip(series)}  at most {top:,.4g}")
    say()
    _say_phases(forecast.phases)
    if any(phase.sources for phase in forecast.phases):
        lines = [line for phase in forecast.phases for line in phase.sources]
        say_mixture(lines)
        say("?: unknown until mix or pack has run\n" if any(line.available is None for line in lines) else "")
    _say_memory(forecast.phases)


def _say_phases(phases: Sequence[PhaseForecast]) -> None:
    rows = []
    for phase in phases:
        rates = [point.lr for point in phase.curve]
        batches = list(dict.fromkeys(point.batch_rows for point in phase.curve))
        speed = phase.speed
        rows.append(
            (
                phase.name, phase.after, phase.steps, phase.tokens, phase.sequence_length, phase.rope_base, phase.shape,
                f"{rates[0]:.3g} .. {max(rates):.3g} .. {rates[-1]:.3g}", " ".join(map(str, batches)),
                "?" if phase.long_token_ratio is None else f"{phase.long_token_ratio:.1%}", f"{phase.flops:.3g}",
                duration(phase.seconds) + (f" (as run {speed.run_id}, {speed.compute})" if speed else ""),
            )
        )  # fmt: skip
    names = ("phase", "after", "steps", "tokens", "length", "RoPE base", "shape", "lr", "batch rows")
    say_table((*names, "in documents above half a row", "FLOPs", "time"), rows)
    say()


def _say_memory(phases: Sequence[PhaseForecast]) -> None:
    rows = [
        (
            phase.name, phase.memory.ranks, phase.memory.micro_batch_rows,
            *(_megabytes(getattr(phase.memory, part)) for part in ("weights", "gradients", "moments")),
            *(_megabytes(getattr(phase.memory, part)) for part in ("copies", "activations", "total")),
            f"{phase.saves.count}, every {phase.saves.every_steps} steps; {phase.saves.every_seconds:g} s",
            _megabytes(phase.saves.bytes), phase.saves.kept, _megabytes(phase.saves.kept_bytes),
        )
        for phase in phases
    ]  # fmt: skip
    names = ("phase", "ranks", "micro-batch rows", "weights", "gradients", "moments", "copies ~", "activations ~")
    say_table(
        (*names, "all ~", "checkpoints", "each", "number kept", "kept"), rows, title="MB of a rank, and of checkpoints"
    )


def _megabytes(count: int) -> float:
    return round(count / MEGABYTE, 2)
