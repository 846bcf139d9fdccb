"""How far a training step is from the machine's matrix rate, and what was tried: `python -m benchmarks.speed.limit`."""

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.machine import describe_machine
from benchmarks.speed.full_scale import FullScale
from benchmarks.timing import median_ratio, seconds_of
from eigen2.erl.learners import ddpg
from eigen2.market.features.averages import CLIP, spans

PRODUCTS = ("aten::bmm", "aten::baddbmm", "aten::mm", "aten::addmm")
PASSES = {
    "additions": ("aten::add", "aten::add_", "aten::sum", "aten::sub", "aten::lerp_"),
    "relu and its gradient": ("aten::relu_", "aten::clamp_min_", "aten::threshold_backward"),
    "copies and joins": ("aten::copy_", "aten::cat", "aten::index", "aten::index_select", "aten::fill_"),
}
STEP = "optimizer step"
SIDE = 1024
"""Rows and columns of the matrices whose product sets the machine's rate."""


class Step:
    """An optimizer step of the full-scale run, with everything from replay slots to targets.

    Args:
        full: the run.
        fused: Adam in one pass, as eigen2's.
    """

    def __init__(self, full: FullScale, fused: bool = True) -> None:
        self.full, self.settings = full, full.module
        self.population = full.population()
        self.slots = full.slots()
        self.optimizer = torch.optim.Adam([self.population.actor, self.population.critic], fused=fused)

    def losses(self, batch: ddpg.Batch) -> Tensor:
        """What is differentiated."""
        losses = ddpg.losses(self.population, batch, self.settings.gamma)
        return (losses.actor + losses.critic).sum()

    def __call__(self) -> None:
        """Gather, forward, backward for each micro-batch; clip, step, move targets."""
        for slots in self.slots:
            (self.losses(self.full.batch(slots)) / len(self.slots)).backward()  # type: ignore[no-untyped-call]
        ddpg.step(self.population, self.optimizer, self.settings.max_grad_norm)
        self.optimizer.zero_grad(set_to_none=False)
        ddpg.update_targets(self.population, self.settings.tau)


def median_s(run: Callable[[], object], runs: int) -> float:
    """Median seconds of a run, after a warm-up."""
    run()
    return statistics.median(seconds_of(run) for _ in range(runs))


def matrix_rate(runs: int) -> float:
    """Floating-point operations a second of a product of two large matrices."""
    a, b = torch.randn(2, SIDE, SIDE)
    return 2 * SIDE**3 / median_s(lambda: a @ b, runs)


def operations(step: Step) -> int:
    """Floating-point operations of a step's matrix products, a multiplication and an addition each counted."""
    with FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())


def profiled(step: Step, runs: int) -> tuple[dict[str, float], list[tuple[str, Any, float]]]:
    """Where a step's time goes, as the profiler sees it, which slows down what is short.

    Returns:
        Share of the time by kind; name, shapes and times a step of each kind of matrix product.
    """
    step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        for _ in range(runs):
            with record_function(STEP):
                step()
    events = seen.key_averages(group_by_input_shape=True)
    whole = sum(event.cpu_time_total for event in events if event.key == STEP)
    shares: Counter[str] = Counter()
    products = []
    for event in events:
        kind = "matrix products" if event.key in PRODUCTS else None
        kind = kind or next((name for name, keys in PASSES.items() if event.key in keys), None)
        if event.key == STEP:
            kind = "Python and calls into torch"
        shares[kind or "views, small operations, autograd's nodes"] += event.self_cpu_time_total / whole
        if event.key in PRODUCTS:
            products.append((event.key, event.input_shapes, event.count / runs))
    return dict(shares), products


def products_alone(products: Sequence[tuple[str, Any, float]], runs: int) -> float:
    """Seconds of a step's matrix products where each is repeated alone, its numbers in the cache."""
    total = 0.0
    for name, shapes, count in products:
        operands = [torch.randn(shape) for shape in shapes if shape]
        function = getattr(torch, name.removeprefix("aten::"))
        total += count * median_s(lambda f=function, x=operands: f(*x), runs)  # type: ignore[misc]
    return total


def optimizers(step: Step, runs: int) -> dict[str, float]:
    """Milliseconds of one step of Adam over all weights, by implementation."""
    step()
    found = {}
    for name, options in {"fused": {"fused": True}, "foreach": {"foreach": True}, "a tensor at a time": {}}.items():
        rows = [torch.nn.Parameter(rows.detach().clone()) for rows in (step.population.actor, step.population.critic)]
        for each in rows:
            each.grad = torch.randn_like(each)
        found[name] = 1e3 * median_s(torch.optim.Adam(rows, **options).step, runs)
    return found


def layouts(step: Step, runs: int) -> dict[str, float]:
    """How many times faster the widest layer is with weights (in, out) than as torch.nn.Linear's (out, in)."""
    agents = step.population.size
    shapes = step.full.data.sizes.inputs["columns"]
    x = torch.randn(agents, step.slots.shape[2] * shapes[0], shapes[1])
    grad = torch.randn(*x.shape[:2], 32)
    rows = torch.randn(agents, 32 * shapes[1] + 1)[:, 1:]
    outer, inner = rows.reshape(agents, 32, -1), rows.reshape(agents, -1, 32)
    pairs = {
        "forward": (lambda: torch.bmm(x, inner), lambda: torch.bmm(x, outer.mT)),
        "gradient of weights": (lambda: torch.bmm(x.mT, grad), lambda: torch.bmm(grad.mT, x)),
    }
    return {name: median_ratio(ours, theirs, runs)[2] for name, (ours, theirs) in pairs.items()}  # type: ignore[arg-type]


def channels(runs: int) -> dict[str, float]:
    """Milliseconds of a convolution of 64 windows of 504 days, as nn.Conv1d and as channels-last nn.Conv2d."""
    x = torch.randn(64, 9, 504)
    last = x[:, :, None].to(memory_format=torch.channels_last)
    weight = torch.randn(32, 9, 3)
    weight_last = weight[:, :, None].to(memory_format=torch.channels_last)
    first_s, last_s, _ = median_ratio(
        lambda: torch.nn.functional.conv1d(x, weight),  # type: ignore[arg-type]
        lambda: torch.nn.functional.conv2d(last, weight_last),  # type: ignore[arg-type]
        runs,
    )
    return {"channels first": 1e3 * first_s, "channels last": 1e3 * last_s}


def tables(step: Step, runs: int) -> dict[str, float]:
    """Describing the days of a micro-batch from the table in half precision, and from prefix sums in float64.

    Returns:
        Milliseconds and MB of each. The sums are of made-up numbers; shapes and work are the real ones.
    """
    data, day = step.full.data, step.full.replay.gather(step.slots[0])["day"]
    days, columns = data.panel.num_days, len(data.investable_columns) + 2
    length = torch.tensor(spans(data.context_days))
    sums = torch.randn(days + 1, columns, 10, dtype=torch.float64).cumsum_(0)
    mean, deviation = torch.randn(10), torch.rand(10) + 1

    def from_sums() -> Tensor:
        end = day.flatten().long() + 1
        begin = (end[:, None] - length).clamp(min=0)
        averages = (sums[end][:, None] - sums[begin]) / length[:, None, None]
        return ((averages.float() - mean) / deviation).clamp_(-CLIP, CLIP).transpose(1, 2).contiguous()

    table_s, sums_s, _ = median_ratio(lambda: data.encoder.describe(day), from_sums, runs)
    return {
        "table ms": 1e3 * table_s,
        "table MB": data.encoder.nbytes / 1e6,
        "sums ms": 1e3 * sums_s,
        "sums MB": sums.nbytes / 1e6,
    }


def compiled(step: Step, runs: int) -> dict[str, float]:
    """Seconds of the first two passes under `torch.compile`, and how many times faster later ones are."""
    batch = step.full.batch(step.slots[0])
    faster = torch.compile(step.losses)
    begun = time.perf_counter()
    faster(batch).backward()
    compile_s = time.perf_counter() - begun
    ratio = median_ratio(lambda: faster(batch).backward(), lambda: step.losses(batch).backward(), runs)[2]  # type: ignore[no-untyped-call]
    return {"compile s": compile_s, "ratio": ratio}


def bf16(step: Step, runs: int) -> float | None:
    """How many times faster forward and backward are in bfloat16, None where the processor has no such products."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return None
    batch = step.full.batch(step.slots[0])

    def half() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = step.losses(batch)
        loss.backward()  # type: ignore[no-untyped-call]

    return median_ratio(half, lambda: step.losses(batch).backward(), runs)[2]  # type: ignore[no-untyped-call]


def study(full: FullScale, runs: int, compile_too: bool) -> dict[str, Any]:
    """All of it, with `threads` as torch has them now."""
    step = Step(full)
    rate, count = matrix_rate(runs), operations(step)
    seconds = median_s(step, runs)
    shares, products = profiled(step, max(3, runs // 3))
    alone = products_alone(products, runs)
    return {
        "machine": {**describe_machine(), "threads": torch.get_num_threads()},
        "matrix_gflops_per_s": rate / 1e9,
        "operations_gflop": count / 1e9,
        "step_ms": 1e3 * seconds,
        "step_gflops_per_s": count / seconds / 1e9,
        "share_of_rate": count / seconds / rate,
        "products_alone_ms": 1e3 * alone,
        "products_alone_gflops_per_s": count / alone / 1e9,
        "time_shares": shares,
        "adam_ms": optimizers(step, runs),
        "weights_in_out_ratio": layouts(step, runs),
        "convolution_ms": channels(runs),
        "describe_days": tables(step, runs),
        "bf16_ratio": bf16(step, runs),
        "compile": compiled(step, runs) if compile_too else None,
    }


def main(words: Sequence[str] | None = None) -> None:
    """Print the figures as JSON, and write them with --out.

    Args:
        words: of the command line; None takes the process's.
    """
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, help="JSON file to write")
    options.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    options.add_argument("--runs", type=int, default=30, help="of each figure (default 30)")
    options.add_argument("--compile", action="store_true", help="torch.compile too, which takes minutes and a compiler")
    asked = options.parse_args(words)
    torch.set_num_threads(asked.threads)
    with FullScale() as full:
        found = study(full, asked.runs, asked.compile)
    text = json.dumps(found, indent=1) + "\n"
    if asked.out:
        asked.out.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
