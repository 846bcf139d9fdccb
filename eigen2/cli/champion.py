"""`python -m eigen2.cli predict` and `export`: a champion put to use, apart from the run it came from."""

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pandas as pd
import yaml
from jsonargparse import Namespace
from rich.console import Console

from eigen2.cli.parser import Parser
from eigen2.core.export import CONFIG, ExportedChampion, load
from eigen2.errors import UserError
from eigen2.runtime.files import WRITE_HINT, replacing

SHOWN = ("ticker", "action", "coefficient", "target_pct", "stake_pct", "days_held", "gain_pct")
"""Columns of the orders that fit a terminal."""


def make_parser(command: str) -> Parser:
    """Return the parser of `predict` or `export`."""
    return COMMANDS[command][0]()


def run(command: str, chosen: Namespace) -> None:
    """Run `predict` or `export`.

    Raises:
        UserError: bad input, in one line.
    """
    COMMANDS[command][1](chosen)


def _predict_parser() -> Parser:
    parser = _parser(
        "predict",
        "Write down what the champion would do at the close of each new day: what to order, what to hold and why, what "
        "was sold. It begins with empty hands, and no row depends on later days.",
    )
    parser.add_argument(
        "--data.path",
        type=str,
        required=True,
        help="Prices as for fit, Parquet or CSV, of the champion's tickers, with the context_days before the new ones.",
    )
    parser.add_argument(
        "--output", type=str, default="orders.csv", help="The CSV file to write, replaced if it is there."
    )
    parser.add_argument(
        "--first",
        type=str | None,
        default=None,
        help="Day of the first decision, YYYY-MM-DD; null takes the last that the fit has looked at: what is ordered "
        "at its close fills on a day that it has not.",
    )
    return parser


def _export_parser() -> Parser:
    parser = _parser(
        "export",
        "Write the champion alone: its actor's weights (champion.safetensors) and all else that it takes to use them "
        "(champion.json).",
    )
    parser.add_argument("--output", type=str, default="champion-export", help="The folder to write, made if need be.")
    parser.add_argument(
        "--onnx",
        type=bool,
        default=False,
        help="Write the actor as a graph too, actor.onnx (extra: eigen2[onnx]).",
    )
    return parser


def _parser(command: str, description: str) -> Parser:
    parser = Parser(prog=f"python -m eigen2.cli {command}", description=description)
    parser.add_argument(
        "--ckpt_path",
        type=str,
        default="best",
        help="Whose champion: best or last of the run, a checkpoint file, or a folder that export wrote.",
    )
    parser.add_argument(
        "--trainer.default_root_dir", type=str | None, default=None, help="The run's folder; null: lightning_logs."
    )
    parser.add_argument(
        "--config",
        type=str | None,
        default=None,
        help="Configuration of the fit. Its trainer.default_root_dir is read; all else is in the checkpoint.",
    )
    parser.add_argument(
        "--actor",
        type=str | None,
        default=None,
        help="Class of the champion's actor if it is not eigen2's own, as module.Class; its module's code is run.",
    )
    return parser


def _champion(chosen: Namespace) -> ExportedChampion:
    folder = Path(chosen.ckpt_path)
    if chosen.ckpt_path not in ("best", "last") and folder.is_dir():
        if (folder / "checkpoints").is_dir() and not (folder / CONFIG).exists():
            raise UserError(
                f"--ckpt_path {folder} is a run's folder; give --ckpt_path best --trainer.default_root_dir {folder}"
            )
        return load(folder)
    from eigen2.runtime.run_folder import find_checkpoint  # Lightning's, which takes seconds to import

    found = find_checkpoint(_root(chosen), chosen.ckpt_path, or_start=False)
    assert found is not None
    return load(found)


def _root(chosen: Namespace) -> Path:
    given: str | None = None
    if chosen.config is not None:
        try:
            config = yaml.safe_load(Path(chosen.config).read_text())
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise UserError(f"--config {chosen.config} cannot be read: {' '.join(str(error).split())[:120]}") from error
        trainer = config.get("trainer") if isinstance(config, dict) else None
        given = trainer.get("default_root_dir") if isinstance(trainer, dict) else None
    return Path(chosen.trainer.default_root_dir or given or "lightning_logs")


def _predict(chosen: Namespace) -> None:
    # they take seconds to import, which --help should not
    from eigen2.market.data.source import read_prices
    from eigen2.market.serving.trader import Trader

    first = None if chosen.first is None else _day(chosen.first)
    trader = Trader(_champion(chosen), chosen.actor)
    output = Path(chosen.output)
    if output.resolve() == Path(chosen.data.path).resolve():
        raise UserError(f"--output {output} is the price file itself, which would be lost; choose another file")
    if output.is_dir():
        raise UserError(f"--output {chosen.output!r} is a folder; {WRITE_HINT}")
    if not output.absolute().parent.is_dir():
        raise UserError(f"--output {chosen.output!r} lies in no folder that exists; {WRITE_HINT}")
    orders = trader.orders(read_prices(chosen.data.path), first)
    try:
        with replacing(output) as draft:
            draft.write_text(orders.to_csv(index=False, float_format="%.6g"))
    except OSError as error:
        raise UserError(f"cannot write --output {chosen.output!r}: {error.strerror or error}; {WRITE_HINT}") from error
    _tell(orders, output)


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UserError(f"--first is {text}; it must be a day as YYYY-MM-DD") from None


def _tell(orders: pd.DataFrame, output: Path) -> None:
    """The last day's rows, and where the others are."""
    console = Console(highlight=False)
    days = orders["date"].unique()
    last = orders[orders["date"] == days[-1]]
    table = last[list(SHOWN)].astype({"days_held": object}).where(last[list(SHOWN)].notna(), "")
    shown = table.to_string(index=False, float_format=lambda value: f"{value:.2f}")
    console.print(f"at the close of {days[-1]:%Y-%m-%d}:\n{shown}", soft_wrap=True, markup=False)
    span = f"{days[0]:%Y-%m-%d} to {days[-1]:%Y-%m-%d}"
    console.print(f"orders       {output}, {len(days)} days, {span}", soft_wrap=True, markup=False)


def _export(chosen: Namespace) -> None:
    champion, folder = _champion(chosen), Path(chosen.output)
    try:
        written = champion.save(folder)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}; choose another --output") from error
    if chosen.onnx:
        from eigen2.core.onnx import write_onnx

        written.append(write_onnx(champion.actor(chosen.actor), champion.sizes, folder / "actor.onnx"))
    for path in written:
        Console(highlight=False).print(f"wrote        {path} ({path.stat().st_size / 1e3:,.1f} kB)", soft_wrap=True)


COMMANDS: dict[str, tuple[Callable[[], Parser], Callable[[Namespace], None]]] = {
    "predict": (_predict_parser, _predict),
    "export": (_export_parser, _export),
}
