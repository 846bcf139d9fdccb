"""Exported champions that were damaged, exchanged or made by somebody else."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from eigen2.core.export import CONFIG, SIGNATURE, WEIGHTS, ExportedChampion, load
from eigen2.errors import UserError
from eigen2.market.data.source import read_prices
from eigen2.market.serving.trader import Trader
from tests.command import eigen2
from tests.market.conftest import Fitted


@pytest.fixture(scope="module")
def champion(fitted: Fitted) -> ExportedChampion:
    return load(fitted.run / "checkpoints" / "best.ckpt")


@pytest.fixture
def folder(champion: ExportedChampion, tmp_path: Path) -> Path:
    champion.save(tmp_path / "export")
    return tmp_path / "export"


def refusal(folder: Path, *args: Any) -> str:
    with pytest.raises(UserError) as refused:
        load(folder, *args)
    return str(refused.value)


def test_every_changed_byte_of_the_weights_and_every_changed_value_is_found(folder: Path) -> None:
    weights = (folder / WEIGHTS).read_bytes()
    for place in range(0, len(weights), 997):
        (folder / WEIGHTS).write_bytes(weights[:place] + bytes([weights[place] ^ 1]) + weights[place + 1 :])
        assert "are not as export wrote them" in refusal(folder)
    (folder / WEIGHTS).write_bytes(weights)
    config = json.loads((folder / CONFIG).read_text())
    for name in config.keys() - {"format"}:
        (folder / CONFIG).write_text(json.dumps(config | {name: None}))
        assert "are not as export wrote them" in refusal(folder)


def test_weights_that_are_not_finite_are_refused(champion: ExportedChampion, tmp_path: Path) -> None:
    for value in (torch.nan, torch.inf):
        weights = {name: weight.clone() for name, weight in champion.weights.items()}
        weights["head.bias"][0] = value
        replace(champion, weights=weights).save(tmp_path)
        assert "has weights that are not finite (head.bias)" in refusal(tmp_path)


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of everything in nested dictionaries and lists; of long lists that of the first alone."""
    if place:
        yield place
    parts = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, part in parts:
        yield from places(part, (*place, key))


def with_value(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    copied = value.copy()
    copied[place[0]] = with_value(value[place[0]], place[1:], new)
    return copied


def test_a_description_without_a_part_of_it_ends_in_one_line(champion: ExportedChampion, tmp_path: Path) -> None:
    config = json.loads(json.dumps(champion.config))
    for name in ("workload", "inference", "data_used"):
        replace(champion, config={key: part for key, part in config.items() if key != name}).save(tmp_path)
        with pytest.raises(UserError, match=r"^the champion holds what eigen2 did not write \(KeyError: "):
            Trader.load(tmp_path)


@pytest.mark.parametrize(
    "new", ["x", 1e308, [], *(pytest.param(new, marks=pytest.mark.slow) for new in (None, -1, 10**30, {}, [[]], True))]
)
def test_a_description_that_somebody_made_up_ends_in_one_line(
    fitted: Fitted, champion: ExportedChampion, tmp_path: Path, new: object
) -> None:
    prices = read_prices(fitted.longer)
    days = prices["date"].unique()
    prices = prices[prices["date"] >= days[-70]]
    messages: list[str] = []
    plain = json.loads(json.dumps(champion.config))
    for place in places(plain):
        if place[0] == "format":
            continue
        replace(champion, config=with_value(plain, place, new)).save(tmp_path)  # with its own checksum
        try:
            Trader.load(tmp_path).orders(prices)
        except UserError as error:
            messages.append(str(error))
    assert len(messages) > 20
    assert not any("\n" in message for message in messages)


def test_a_signature_says_whose_champion_it_is_and_that_nobody_changed_it(folder: Path, tmp_path: Path) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("needs OpenSSH")
    for name in ("alice", "mallory"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(tmp_path / name)]
        subprocess.run(words, check=True)
    signers = tmp_path / "signers"
    signers.write_text(f"alice@example.com {(tmp_path / 'alice.pub').read_text()}")
    assert "it was not exported with --sign" in refusal(folder, signers)

    champion = load(folder)
    champion.save(folder, tmp_path / "alice")
    assert load(folder, signers).config == champion.config
    assert "there is no file" in refusal(folder, tmp_path / "nobody")
    signature = (folder / SIGNATURE).read_bytes()
    changed = replace(champion, config={**champion.config, "champion": {}})
    changed.save(folder)
    assert not (folder / SIGNATURE).exists()  # of the champion before
    (folder / SIGNATURE).write_bytes(signature)
    assert "alice@example.com is not valid (Signature verification failed" in refusal(folder, signers)
    champion.save(folder, tmp_path / "alice")
    key = (tmp_path / "alice.pub").read_text()
    signers.write_text(f'"Alice Doe" {key}')
    assert load(folder, signers).config == champion.config
    signers.write_text(f'alice namespaces="git" {key}')
    assert "restricts the key to other namespaces than eigen2-champion" in refusal(folder, signers)
    signers.write_text(f"alice@example.com {key}")
    champion.save(folder, tmp_path / "mallory")
    assert "is by none of the signers" in refusal(folder, signers)
    (folder / SIGNATURE).write_text("no signature")
    assert "is by none of the signers" in refusal(folder, signers)
    with pytest.raises(UserError, match=r"missing cannot sign \(.*\); give an SSH key"):
        champion.save(folder, tmp_path / "missing")


def test_the_commands_sign_and_require_a_signature(fitted: Fitted, tmp_path: Path) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("needs OpenSSH")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    (tmp_path / "signers").write_text(f"me {(tmp_path / 'key.pub').read_text()}")
    root = ("--trainer.default_root_dir", fitted.run)
    signed = eigen2("export", *root, "--sign", tmp_path / "key", "--output", tmp_path / "export")
    assert (signed.returncode, SIGNATURE in signed.stdout) == (0, True), signed.stderr
    path = ("--data.path", fitted.longer, "--output", tmp_path / "orders.csv")
    required = ("--require_signed", tmp_path / "signers")
    done = eigen2("predict", "--ckpt_path", tmp_path / "export", *path, *required)
    assert done.returncode == 0, done.stderr
    refused = eigen2("predict", *root, *path, *required)
    assert refused.returncode == 2
    assert refused.stderr.endswith("is a checkpoint, which has no signature; give a folder written by export --sign\n")
