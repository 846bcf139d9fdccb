"""Networks that read windows of the panel: what they may see, and a population of them that equals each one alone."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from eigen2.core.networks import DESCRIBED, Inputs, Sizes, StackedNetwork
from eigen2.errors import UserError
from eigen2.market.networks.columns import DRAWS, PORTFOLIO, MarketSizes
from eigen2.market.networks.windows import (
    CnnLstmActor,
    CnnLstmCritic,
    ConvolutionActor,
    ConvolutionCritic,
    DilatedConvolutions,
)

DAYS, ALL, FEATURES, BATCH, AGENTS, CONTEXT = 60, 7, 9, 4, 3, 21
INVESTABLE = torch.tensor([5, 0, 3])
COLUMNS = len(INVESTABLE)

Make = Callable[[Sizes], nn.Module]

SMALL: dict[str, Make] = {
    "convolution actor": lambda sizes: ConvolutionActor(sizes, hidden=8),
    "convolution critic": lambda sizes: ConvolutionCritic(sizes, hidden=8),
    "LSTM actor": lambda sizes: CnnLstmActor(sizes, hidden=8, filters=8, heads=2),
    "LSTM critic": lambda sizes: CnnLstmCritic(sizes, hidden=8, filters=8, heads=2),
}
CRITICS = ["convolution critic", "LSTM critic"]
every_network = pytest.mark.parametrize("name", SMALL)


def sizes_of(context: int = CONTEXT) -> MarketSizes:
    inputs = {"day": (), "panel": (ALL, FEATURES), "investable": (COLUMNS,), "market": (1,)}
    return MarketSizes(
        {**inputs, "portfolio": (COLUMNS, len(PORTFOLIO["orders"])), DRAWS: (COLUMNS,)}, (COLUMNS, 2), context
    )


def chance(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_inputs(seed: int = 1, dtype: torch.dtype = torch.float64) -> Inputs:
    """Make inputs of days whose windows are all complete, one of them twice."""
    generator = chance(seed)
    return {
        "day": torch.tensor([CONTEXT + 5, 59, CONTEXT + 5, 40]),
        "panel": torch.randn(DAYS, ALL, FEATURES, generator=generator, dtype=dtype),
        "investable": INVESTABLE,
        "portfolio": torch.randn(BATCH, COLUMNS, len(PORTFOLIO["orders"]), generator=generator, dtype=dtype),
        DRAWS: torch.arange(COLUMNS, dtype=torch.int16).expand(BATCH, COLUMNS),
        "market": torch.rand(BATCH, 1, generator=generator, dtype=dtype),
    }


def random_action(seed: int = 2, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(BATCH, COLUMNS, 2, generator=chance(seed), dtype=dtype) * 2 - 1


def random_network(name: str, context: int = CONTEXT, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Build a network whose weights are all random and of a size that matters."""
    network = SMALL[name](sizes_of(context)).to(dtype)
    generator = chance(seed)
    with torch.no_grad():
        for weight in network.parameters():
            scale = 1.5 / max(1, weight[0].numel()) ** 0.5 if weight.dim() > 1 else 0.3
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=dtype) * scale)
    return network


def output(network: nn.Module, inputs: Inputs, action: Tensor | None = None) -> Tensor:
    """Return the output of an actor, or of a critic for the action."""
    asked: tuple[Tensor, ...] = ()
    if isinstance(network, ConvolutionCritic | CnnLstmCritic):
        asked = (random_action(dtype=inputs["panel"].dtype) if action is None else action,)
    return network(inputs, *asked)


def difference(one: Tensor, other: Tensor) -> Tensor:
    """Return the largest difference in each row of the batch, (batch,)."""
    return (one - other).detach().abs().flatten(start_dim=1).amax(1) if one.dim() > 1 else (one - other).detach().abs()


@pytest.mark.parametrize("context", [1, CONTEXT])
@every_network
def test_actions_lie_between_minus_1_and_1_and_values_are_one_a_row(name: str, context: int) -> None:
    network, inputs = random_network(name, context, dtype=torch.float32), random_inputs(dtype=torch.float32)
    with torch.no_grad():
        network.get_parameter("head.weight").mul_(100)
    result = output(network, inputs)
    assert result.shape == ((BATCH,) if name in CRITICS else (BATCH, COLUMNS, 2))
    assert name in CRITICS or 0.9 < result.abs().max() <= 1, "reaches towards the ends and no further"


every_kind = pytest.mark.parametrize("kind", [ConvolutionActor, ConvolutionCritic, CnnLstmActor, CnnLstmCritic])


@every_kind
def test_networks_may_be_as_narrow_as_one_unit(kind: Callable[..., nn.Module]) -> None:
    assert output(kind(sizes_of(), hidden=1), random_inputs(dtype=torch.float32)).isfinite().all()


@every_kind
def test_networks_have_weights_only_and_refuse_another_encoding(kind: Make) -> None:
    assert not list(kind(sizes_of()).buffers()), "a population holds weights only"
    averages = MarketSizes(
        {"columns": (3, 20), "portfolio": (3, len(PORTFOLIO["orders"])), "market": (41,)}, (3, 2), 16
    )
    with pytest.raises(UserError, match=f"^{kind.__name__} reads windows: set data.encoding to windows$"):
        kind(averages)


def window_by_hand(panel: Tensor, day: int, context: int) -> Tensor:
    """Return (context, columns, features), zeros before the panel."""
    past = panel[max(0, day - context + 1) : day + 1]
    return torch.cat([panel.new_zeros(context - len(past), *panel.shape[1:]), past])


def plain_dilated(tree: DilatedConvolutions, window: Tensor, investable: list[int]) -> Tensor:
    """Compute tokens (columns, hidden) of one window by ordinary dilated convolutions over all its days."""
    others = [column for column in range(window.shape[1]) if column not in investable]
    rest = window[:, others].mean(1) if others else torch.zeros_like(window[:, 0])
    means = torch.cat([window.mean(1), rest], dim=1).T

    def causal(series: Tensor, weight: Tensor, bias: Tensor | None, dilation: int) -> Tensor:
        kernel = torch.stack(weight.chunk(2, dim=1), dim=-1)  # (out, in, 2): the earlier day first
        return functional.conv1d(functional.pad(series, (dilation, 0)), kernel, bias, dilation=dilation)

    tokens = []
    for column in investable:
        own = causal(window[:, column].T, tree.column.weight, None, 1)
        series = functional.glu(own + causal(means, tree.means.weight, tree.means.bias, 1), dim=0)
        for level, layer in enumerate(tree.layers, start=1):
            assert isinstance(layer, nn.Linear)
            series = series + functional.glu(causal(series, layer.weight, layer.bias, 2**level), dim=0)
        tokens.append(tree.token(series[:, -1]))
    return torch.stack(tokens)


@pytest.mark.parametrize("investable", [[5, 0, 3], list(range(ALL))])
@pytest.mark.parametrize("context", [1, 2, 3, 13, 16])
def test_the_tree_is_a_plain_dilated_causal_convolution(context: int, investable: list[int]) -> None:
    torch.manual_seed(0)
    tree = DilatedConvolutions(FEATURES, 6, context).double()
    days = [0, 2, context - 1, 40]
    panel = random_inputs()["panel"]
    tokens = tree({"panel": panel, "day": torch.tensor(days), "investable": torch.tensor(investable)})
    expected = torch.stack([plain_dilated(tree, window_by_hand(panel, day, context), investable) for day in days])
    torch.testing.assert_close(tokens, expected)
    assert len(tree.layers) + 1 == max(1, (context - 1).bit_length()), "no layer beyond the context"


def with_day(inputs: Inputs, day: int) -> Inputs:
    return {**inputs, "day": torch.full((BATCH,), day)}


def changed_at(inputs: Inputs, days: slice | int) -> Inputs:
    panel = inputs["panel"].clone()
    panel[days] += torch.randn(panel[days].shape, generator=chance(9), dtype=panel.dtype)
    return {**inputs, "panel": panel}


@every_network
def test_no_day_outside_the_window_counts(name: str) -> None:
    network, inputs = random_network(name), with_day(random_inputs(), 40)
    expected = output(network, inputs)
    for outside in (slice(41, None), slice(None, 40 - CONTEXT + 1)):
        assert output(network, changed_at(inputs, outside)).equal(expected)


@pytest.mark.parametrize("context", [1, CONTEXT])
@every_network
def test_every_day_inside_the_window_counts(name: str, context: int) -> None:
    network, inputs = random_network(name, context), with_day(random_inputs(), 40)
    expected = output(network, inputs)
    for inside in range(40 - context + 1, 41):
        assert difference(output(network, changed_at(inputs, inside)), expected).min() > 1e-9, f"day {inside}"


@every_network
def test_days_before_the_panel_count_as_zeros(name: str) -> None:
    network, inputs = random_network(name), random_inputs()
    before = torch.zeros(CONTEXT, ALL, FEATURES, dtype=torch.float64)
    longer = {**inputs, "panel": torch.cat([before, inputs["panel"]])}
    for day in (0, 3, CONTEXT - 2):
        expected = output(network, with_day(longer, day + CONTEXT))
        torch.testing.assert_close(output(network, with_day(inputs, day)), expected)
        assert output(network, changed_at(with_day(inputs, day), slice(day + 1, None))).equal(
            output(network, with_day(inputs, day))
        ), "nothing comes from the panel's end"


@every_network
def test_every_input_counts_and_rows_of_a_batch_do_not_mix(name: str) -> None:
    network, inputs = random_network(name, seed=1), random_inputs()
    expected, panel = output(network, inputs), inputs["panel"].clone()
    panel[:, 6] += 1  # a column that nobody may buy
    others = {part: inputs[part] + 1 for part in ("portfolio", "market", "investable")}
    for part, value in {**others, "day": inputs["day"] - 1, "panel": panel}.items():
        assert difference(output(network, {**inputs, part: value}), expected).min() > 1e-6, part
    one = {part: value if part in ("panel", "investable") else value[1:2] for part, value in inputs.items()}
    torch.testing.assert_close(output(network, one, random_action()[1:2]), expected[1:2])


@every_network
def test_columns_may_be_in_any_order(name: str) -> None:
    network, inputs, action = random_network(name), random_inputs(), random_action()
    expected, order = output(network, inputs, action), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    place = torch.argsort(order)  # where each column of the panel went
    other = {**inputs, "panel": inputs["panel"][:, order], "investable": place[INVESTABLE]}
    torch.testing.assert_close(output(network, other, action), expected)
    order = torch.tensor([2, 0, 1])
    other = {**inputs, "investable": INVESTABLE[order], "portfolio": inputs["portfolio"][:, order]}
    result = output(network, other, action[:, order])
    torch.testing.assert_close(result, expected if name in CRITICS else expected[:, order])
    # but which portfolio and action is which column's matters
    assert (output(network, {**other, "investable": INVESTABLE}, action) - expected).abs().max() > 1e-3


def gradients(network: nn.Module, result: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(result.square().sum(), list(network.parameters())))


@every_network
def test_a_description_follows_from_the_day_alone_and_is_used_if_given(name: str) -> None:
    network, inputs = random_network(name), random_inputs()
    described = network.describe(inputs)
    other = {**inputs, "portfolio": inputs["portfolio"] + 1, "market": inputs["market"] + 1}
    assert network.describe(other).equal(described)
    torch.testing.assert_close(described[0], described[2])
    assert not torch.allclose(described[0], described[1])
    # the panel is not even looked at
    given = {**inputs, DESCRIBED: described, "panel": torch.full_like(inputs["panel"], torch.nan)}
    expected, result = output(network, inputs), output(network, given)
    assert result.equal(expected)
    for got, right in zip(gradients(network, result), gradients(network, expected), strict=True):
        torch.testing.assert_close(got, right)


@every_network
def test_gradients_reach_every_weight(name: str) -> None:
    network = random_network(name)
    found = gradients(network, output(network, random_inputs()))
    for (weight, _), gradient in zip(network.named_parameters(), found, strict=True):
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 1e-9, weight


def stacked_inputs(day: int, others: int) -> Inputs:
    """Make inputs with an agent axis of the given sizes; panel and investable columns are shared."""
    agents = [random_inputs(seed) for seed in range(1, AGENTS + 1)]
    sizes = {"day": day, "panel": 1, "investable": 1, "portfolio": others, DRAWS: day, "market": others}
    stacked = {part: torch.stack([one[part] for one in agents])[:size] for part, size in sizes.items()}
    if day > 1:
        stacked["day"] = stacked["day"] - torch.arange(day)[:, None]
    return stacked


AXES = {"acting": (1, AGENTS), "training": (AGENTS, AGENTS), "shared": (1, 1)}


@pytest.mark.parametrize(
    ("axes", "described", "loop"), [("acting", False, False), ("training", True, False), ("shared", True, True)]
)
@every_network
def test_a_population_is_each_network_alone(name: str, axes: str, described: bool, loop: bool) -> None:
    networks = [random_network(name, seed=seed) for seed in range(AGENTS)]
    inputs = stacked_inputs(*AXES[axes])
    actions = [random_action(seed) for seed in range(AGENTS)]
    template = SMALL[name](sizes_of())
    with torch.no_grad():
        for weight in template.parameters():
            weight.fill_(torch.nan)  # the template's own weights must play no part, in the backward pass neither
    stacked = StackedNetwork(template.double())
    declared = "vmap" if "convolution" in name else "loop"
    assert stacked.over_agents == declared
    if loop:
        stacked.over_agents = "loop"
    rows = torch.stack([nn.utils.parameters_to_vector(network.parameters()) for network in networks]).detach()
    rows.requires_grad_()
    seen = stacked.described(rows, inputs) if described else inputs
    asked = (torch.stack(actions),) if name in CRITICS else ()
    result = stacked(rows, seen, *asked)
    assert stacked.over_agents == ("loop" if loop else declared), "it did not fall back"
    (gradient,) = torch.autograd.grad(result.square().sum(), rows)
    for agent, network in enumerate(networks):
        own = {part: value[agent if len(value) > 1 else 0] for part, value in inputs.items()}
        expected = output(network, own, actions[agent])
        torch.testing.assert_close(result[agent], expected)
        right = nn.utils.parameters_to_vector(gradients(network, expected))
        torch.testing.assert_close(gradient[agent], right)
    assert (result[0] - result[1]).abs().max() > 1e-2, "agents differ"


def bytes_kept(run: Callable[[], Tensor]) -> int:
    """Return the bytes of the tensors that the result keeps for its gradients, each storage once."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(kept.values())


def test_a_recomputed_network_keeps_nothing_and_has_the_same_gradients() -> None:
    inputs = random_inputs()
    window = 8 * BATCH * CONTEXT * ALL * FEATURES
    for name in ("LSTM actor", "LSTM critic"):
        network = random_network(name)
        direct, again = network.describer(inputs), network.describe(inputs)
        assert again.equal(direct)
        describer = network.get_submodule("describer")
        for got, right in zip(gradients(describer, again), gradients(describer, direct), strict=True):
            torch.testing.assert_close(got, right)
        weights = sum(weight.nbytes for weight in network.parameters())
        assert bytes_kept(lambda: describer(inputs)) > window  # noqa: B023 - called at once
        assert bytes_kept(lambda: output(network, inputs)) < weights + window / 4, name  # noqa: B023


@every_network
def test_half_precision(name: str) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = SMALL[name](sizes_of())
    inputs, action = random_inputs(dtype=torch.float32), random_action(dtype=torch.float32)
    expected = output(network, inputs, action)
    with torch.autocast("cpu", torch.bfloat16):
        result = output(network, inputs, action)
        described = network.describe(inputs)
        torch.testing.assert_close(output(network, {**inputs, DESCRIBED: described}, action), result)
    torch.testing.assert_close(result.float(), expected, atol=0.02, rtol=0.02)
    full, half = (nn.utils.parameters_to_vector(gradients(network, each.float())) for each in (expected, result))
    assert half.dtype == torch.float32
    assert (half - full).norm() < 0.1 * full.norm()


def test_the_lstm_stays_in_training_mode() -> None:
    """A population evaluates its networks, and cuDNN computes no gradients for an LSTM in evaluation mode."""
    modes = {type(part): part.training for part in StackedNetwork(SMALL["LSTM actor"](sizes_of())).network.modules()}
    assert modes[nn.LSTM]
    assert not modes[nn.Conv1d]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("half", [False, True])
@every_network
def test_on_a_device_it_is_the_same(name: str, half: bool) -> None:
    network, inputs, action = random_network(name, dtype=torch.float32), random_inputs(), random_action()
    inputs = {part: value.float() if value.is_floating_point() else value for part, value in inputs.items()}
    expected = output(network, inputs, action.float())
    there = copy.deepcopy(network).cuda().eval()  # as a population holds it; cuDNN is particular about it
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        result = output(there, {part: value.cuda() for part, value in inputs.items()}, action.float().cuda())
    tolerance = 0.2 if half else 0.02  # convolutions may use TF32
    torch.testing.assert_close(result.float().cpu(), expected, atol=tolerance, rtol=tolerance)
    full = nn.utils.parameters_to_vector(gradients(network, expected))
    found = nn.utils.parameters_to_vector(gradients(there, result.float())).cpu()
    assert (found - full).norm() < (0.3 if half else 0.05) * full.norm()
