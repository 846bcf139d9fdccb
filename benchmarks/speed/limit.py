"""Distance of a training step from the machine's matrix rate, and alternatives that were tried."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.harness import Benchmark, Row, Settings, Task, median_ratio, median_seconds, only_row
from benchmarks.speed.full_scale import CONFIG, FullScale
from eigen2.erl.learners import Batch, gradients
from eigen2.erl.row_adam import RowAdam
from eigen2.market.features.averages import CLIP, spans
from eigen2.market.features.encoding import AverageEncoder

PRODUCTS = ("aten::bmm", "aten::baddbmm", "aten::mm", "aten::addmm")
PASSES = {
    "additions": ("aten::add", "aten::add_", "aten::sum", "aten::sub", "aten::lerp_"),
    "relu and its gradient": ("aten::relu_", "aten::clamp_min_", "aten::threshold_backward"),
    "copies and joins": ("aten::copy_", "aten::cat", "aten::index", "aten::index_select", "aten::fill_"),
}
STEP = "optimizer step"
SIDE = 1024  # rows and columns of the matrices whose product sets the machine's rate


class Step:
    """Optimizer step of the full-scale run, with everything from replay slots to targets."""

    def __init__(self, full: FullScale) -> None:
        self.full, self.settings = full, full.module.hparams
        self.population = full.population()
        self.slots = full.slots()
        self.optimizer = full.optimizer(self.population)

    def losses(self, batch: Batch) -> Tensor:
        """Return what is differentiated."""
        losses = self.full.module.learner.losses(self.population, batch)
        return (losses.actor + losses.critic).sum()

    def __call__(self) -> None:
        """Gather, forward, backward for each micro-batch; clip, step, move targets."""
        for slots in self.slots:
            (self.losses(self.full.batch(slots)) / len(self.slots)).backward()  # type: ignore[no-untyped-call]
        gradients.step(self.population, self.optimizer, self.settings["max_grad_norm"])
        gradients.clear_gradients(self.population)
        gradients.update_targets(self.population, self.settings["tau"])


def operations(step: Step) -> int:
    """Return the floating-point operations of a step's matrix products; a multiply-add counts two."""
    with FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())


def profiled(step: Step, runs: int) -> tuple[dict[str, float], list[tuple[str, Any, float]]]:
    """Return shares of a profiled step's time by kind; name, shapes and times a step of each kind of matrix product."""
    step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        for _ in range(runs):
            with record_function(STEP):
                step()
    events = seen.key_averages(group_by_input_shape=True)
    whole = sum(event.cpu_time_total for event in events if event.key == STEP)
    shares: Counter[str] = Counter()
    products = []
    kinds = {key: kind for kind, keys in {"matrix products": PRODUCTS, **PASSES}.items() for key in keys}
    kinds[STEP] = "Python and calls into torch"
    for event in events:
        kind = kinds.get(event.key, "views, small operations, autograd's nodes")
        shares[kind] += event.self_cpu_time_total / whole
        if event.key in PRODUCTS:
            products.append((event.key, event.input_shapes, event.count / runs))
    return dict(shares), products


def products_alone(products: Sequence[tuple[str, Any, float]], runs: int) -> float:
    """Return seconds of a step's matrix products where each is repeated alone, its operands in the cache."""
    total = 0.0
    for name, shapes, count in products:
        operands = [torch.randn(shape) for shape in shapes if shape]
        function = getattr(torch, name.removeprefix("aten::"))
        total += count * median_seconds(lambda f=function, x=operands: f(*x), runs)  # type: ignore[misc]
    return total


def optimizers(step: Step, runs: int) -> dict[str, float]:
    """Return milliseconds of one step over all weights of the optimizer that ships and of torch's Adam."""
    kinds: dict[str, Any] = {"rows": None, "fused": {"fused": True}, "foreach": {"foreach": True}}
    found = {}
    for name, options in {**kinds, "a tensor at a time": {}}.items():
        rows = [torch.nn.Parameter(rows.detach().clone()) for rows in (step.population.actor, step.population.critic)]
        for each in rows:
            each.grad = torch.randn_like(each)
        groups = [{"params": [each], "lr": 1e-3} for each in rows]
        optimizer = RowAdam(groups) if options is None else torch.optim.Adam(groups, **options)
        found[name] = 1e3 * median_seconds(optimizer.step, runs)
    return found


def layouts(step: Step, runs: int) -> dict[str, float]:
    """Return how many times faster the widest layer is with weights (in, out) than as torch.nn.Linear's (out, in)."""
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
    return {name: median_ratio(ours, theirs, runs)[2] for name, (ours, theirs) in pairs.items()}


def channels(runs: int) -> dict[str, float]:
    """Return milliseconds of a convolution of 64 windows of 504 days, as nn.Conv1d and as channels-last nn.Conv2d."""
    x = torch.randn(64, 9, 504)
    last = x[:, :, None].to(memory_format=torch.channels_last)
    weight = torch.randn(32, 9, 3)
    weight_last = weight[:, :, None].to(memory_format=torch.channels_last)
    convolve = torch.nn.functional
    first_s, last_s, _ = median_ratio(
        lambda: convolve.conv1d(x, weight), lambda: convolve.conv2d(last, weight_last), runs
    )
    return {"channels first": 1e3 * first_s, "channels last": 1e3 * last_s}


def encodings(step: Step, runs: int) -> dict[str, float]:
    """Return ms and MB of encoding a micro-batch's days from the half precision table and from random float64 sums."""
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

    encoder = data.encoder
    assert isinstance(encoder, AverageEncoder)
    table_s, sums_s, _ = median_ratio(lambda: encoder.describe(day), from_sums, runs)
    sizes = {"table MB": encoder.nbytes / 1e6, "sums MB": sums.nbytes / 1e6}
    return {"table ms": 1e3 * table_s, "sums ms": 1e3 * sums_s, **sizes}


def compiled(step: Step, runs: int) -> dict[str, float]:
    """Return seconds of the first pass under `torch.compile`, and how many times faster later ones are."""
    batch = step.full.batch(step.slots[0])
    faster = torch.compile(step.losses)
    begun = time.perf_counter()
    faster(batch).backward()
    compile_s = time.perf_counter() - begun
    ratio = median_ratio(lambda: faster(batch).backward(), lambda: step.losses(batch).backward(), runs)[2]  # type: ignore[no-untyped-call]
    return {"compile s": compile_s, "ratio": ratio}


def bf16(step: Step, runs: int) -> float | None:
    """Return how many times faster forward and backward are in bfloat16; None where the processor lacks it."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return None
    batch = step.full.batch(step.slots[0])

    def half() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = step.losses(batch)
        loss.backward()  # type: ignore[no-untyped-call]

    return median_ratio(half, lambda: step.losses(batch).backward(), runs)[2]  # type: ignore[no-untyped-call]


def measure(task: Task, settings: Settings, folder: Path) -> Row:
    """Measure everything with the threads that torch has now."""
    with FullScale(Path(settings["config"]), cache=folder / "cache") as full:
        return distance(full, settings["runs"], settings["compile"])


def distance(full: FullScale, runs: int, compile_too: bool) -> Row:
    """Return the distance from the matrix rate, where a step's time goes, and the alternatives."""
    a, b = torch.randn(2, SIDE, SIDE)
    rate = 2 * SIDE**3 / median_seconds(lambda: a @ b, runs)
    step = Step(full)
    count = operations(step)
    seconds = median_seconds(step, runs)
    shares, products = profiled(step, max(3, runs // 3))
    alone = products_alone(products, runs)
    return {
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
        "describe_days": encodings(step, runs),
        "bf16_ratio": bf16(step, runs),
        "compile": compiled(step, runs) if compile_too else None,
    }


SETTINGS = {"config": str(CONFIG), "runs": 30, "compile": True}
SMALLEST = {"config": "tests/small.yaml", "runs": 1, "compile": False}
LIMIT = Benchmark(measure, lambda settings: [Task("step")], SETTINGS, SMALLEST, only_row, fresh=True)
BENCHMARKS = {"limit-1": LIMIT, "limit-2": replace(LIMIT, settings={**SETTINGS, "compile": False, "threads": 2})}
