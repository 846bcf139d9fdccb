"""Search spaces of sweeps: ranges and choices in a YAML file."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from eigen2.errors import UserError

optuna = pytest.importorskip("optuna")

from eigen2.sweep.space import FORMS, Space, corners, read_space  # noqa: E402
from eigen2.sweep.trial import to_text  # noqa: E402


def write_and_read(tmp_path: Path, text: str) -> Space:
    path = tmp_path / "space.yaml"
    path.write_text(text)
    return read_space(str(path))


def test_a_space_of_each_kind(tmp_path: Path) -> None:
    text = """
    z.log: {low: 1e-4, high: 1e-2, log: true}
    a.whole: {low: 1, high: 9, step: 2}
    b.steps: {low: 0, high: 1, step: 0.25}
    c.any: {low: 0.0, high: 1}
    d.choice: {choices: [1e-4, null, true, relu, 3]}
    """
    space = write_and_read(tmp_path, text)
    assert list(space) == sorted(space)
    samples = corners(space)
    assert len(samples) == 5
    assert {settings["a.whole"] for settings in samples} == {1, 9}
    assert [to_text(settings["d.choice"]) for settings in samples] == ["1e-4", "null", "true", "relu", "3"]
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    samples = [study.ask(space).params for _ in range(60)]
    assert {settings["a.whole"] for settings in samples} == {1, 3, 5, 7, 9}
    assert {settings["b.steps"] for settings in samples} == {0, 0.25, 0.5, 0.75, 1}
    assert {str(settings["d.choice"]) for settings in samples} == {"1e-4", "None", "True", "relu", "3"}
    assert all(isinstance(settings["c.any"], float) for settings in samples)
    # both halves of the logarithmic range are equally likely
    assert 15 < sum(settings["z.log"] < 1e-3 for settings in samples) < 45


ENTRIES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "1e-3", "x", "true"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["low", "high", "step", "log", "choices", "x"]), inner, max_size=4)
    ),
    max_leaves=6,
)
NUMBERS = st.integers(-3, 5) | st.floats(-2, 9) | st.sampled_from([1e-300, 1e15, 0.1, "1e-3"])
RANGES = st.fixed_dictionaries({"low": NUMBERS, "high": NUMBERS}, optional={"step": NUMBERS, "log": st.booleans()})


@given(st.dictionaries(st.sampled_from(["model.a", "model.b", "config", "1", ""]), ENTRIES | RANGES, max_size=2))
def test_any_file_is_a_space_or_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, content: object) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(yaml.safe_dump(content))
    message, space = "", None
    try:
        space = read_space(str(path))
    except UserError as error:
        message = str(error)
    if space is None:
        assert message.startswith(f"--space {path}")
        assert "\n" not in message
        return
    settings = optuna.create_study().ask(space).params
    assert all(len(to_text(value).splitlines()) < 2 for value in settings.values() if not isinstance(value, str))


def test_a_folder_in_place_of_a_space_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: Is a directory; give a YAML file"):
        read_space(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds null; it must map keys to values"),
        ("a: {b", "cannot be read: "),
        ("model.a: 3", f": model.a is 3; it must be {FORMS}"),
        ("model.a: {low: 1}", f": model.a is {{'low': 1}}; it must be {FORMS}"),
        ("model.a: {low: 1, high: 2, choices: [1]}", "'choices': [1]}; it must be"),
        ("model.a: {low: 3, high: 2}", ": model.a: low <= high must hold, but got (low=3, high=2)"),
        ("model.a: {low: x, high: 2}", ": model.a: low is x; it must be a number"),
        ("model.a: {low: 1, high: .inf}", ": model.a: high is inf; it must be a number"),
        ("model.a: {low: 0.0, high: 2, log: true}", ": model.a: low > 0 must hold for log=True, but got (low=0.0,"),
        ("model.a: {low: 1, high: 2, log: 3}", ": model.a: log is 3; it must be true or false"),
        ("model.a: {low: 1, high: 4, step: 2}", ": model.a: no step of 2 from 1 reaches high 4"),
        ("model.a: {choices: []}", ": model.a: choices is []; it must be a list of at least one value"),
        ("model.a: {choices: [[1, 2]]}", ": model.a: choices has [1, 2]; write it as text, in quotes"),
        ("model.a: {choices: [1, 2, 1.0]}", ": model.a: choices has 1 twice; leave one out"),
        ("model.a: {choices: ['true', true]}", ": model.a: choices has true twice; leave one out"),
        ("3: {choices: [1]}", ": 3 is read as int, not as a key; put it in quotes"),
        ("'3': {choices: [1]}", ": 3 is not a key; name full keys of fit, such as model.actor_lr"),
        ("ckpt_path: {choices: [last]}", ": ckpt_path is set by the sweep itself; leave it out"),
    ],
)
@pytest.mark.filterwarnings("ignore:The distribution is specified by")
def test_an_invalid_space_is_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        write_and_read(tmp_path, text)
    assert message in str(error.value).removeprefix(f"--space {tmp_path / 'space.yaml'}")
    assert "\n" not in str(error.value)
