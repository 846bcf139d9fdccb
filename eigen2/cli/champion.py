"""`python -m eigen2.cli predict` and `export`: use a champion without the run that trained it."""

from datetime import date
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from eigen2.cli.parser import Parser
from eigen2.core.export import CONFIG, GRAPH, ExportedChampion, load
from eigen2.core.saved_run import altered_as_user_error
from eigen2.errors import UserError, printable
from eigen2.files import write, writing

TABLE = ["ticker", "action", "size", "target_pct", "stake_pct", "days_held", "gain_pct"]
"""Columns of the orders that are printed."""
DESCRIPTIONS = {
    "predict": "Write the champion's decisions at the close of each new day: orders, open positions and sales, each "
    "with its reason. It starts without positions. Days added to the prices leave the rows "
    "before them as they are.",
    "export": "Write the champion without its run: the weights of its actor (champion.safetensors) and the "
    "configuration needed to use them (champion.json).",
}
Option = tuple[Any, Any, str]  # type, default (`...` if required) and help
SHARED: dict[str, Option] = {
    "ckpt_path": (str, "best", "Champion: best or last of the run, a checkpoint file, or a folder written by export."),
    "trainer.default_root_dir": (str, "lightning_logs", "The run's folder."),
    "ensemble": (
        bool,
        False,
        "Whether to take the mean of the actions of the run's champion and of those of its other seeds (test --seeds).",
    ),
    "actor": (str | None, None, "Class of a custom actor, module.Class; its module is imported, which runs its code."),
}
OPTIONS: dict[str, dict[str, Option]] = {
    "predict": {
        "data.path": (str, ..., "Prices of the champion's tickers as for fit, with context_days before the new days."),
        "data.membership": (str | None, None, "Days on which tickers may be bought, a file as for fit; null is all."),
        "output": (str, "orders.csv", "CSV file to write; an existing file is replaced."),
        "require_signed": (
            str | None,
            None,
            "File of allowed signers (man ssh-keygen): the champion must be one that export --sign signed for one of "
            "them.",
        ),
        "first": (str | None, None, "Day of the first decision, YYYY-MM-DD; null is the last day used in fit."),
    },
    "export": {
        "output": (str, "champion-export", "Folder to write to, created if missing."),
        "sign": (str | None, None, "SSH key to sign the champion with; writes champion.json.sig beside it."),
        "onnx": (bool, False, "Also write the actor as an ONNX graph, actor.onnx (needs the extra onnx)."),
    },
}


def make_parser(command: str) -> Parser:
    """Return the parser of `predict` or `export`."""
    parser = Parser(prog=f"python -m eigen2.cli {command}", description=DESCRIPTIONS[command])
    parser.add_options({**SHARED, **OPTIONS[command]})
    return parser


def run(command: str, options: Namespace) -> None:
    """Run `predict` or `export`."""
    (_predict if command == "predict" else _export)(options)


def _champion(options: Namespace) -> ExportedChampion:
    folder = Path(options.ckpt_path).expanduser()
    if options.ckpt_path not in ("best", "last") and folder.is_dir():
        if (folder / "checkpoints").is_dir() and not (folder / CONFIG).exists():
            raise UserError(
                f"--ckpt_path {folder} is a run's folder; give --ckpt_path best --trainer.default_root_dir {folder}"
            )
        if options.ensemble:
            raise UserError(f"--ensemble takes the trainings of a run, but {folder} is an export: leave it out")
        return load(folder, options.get("require_signed"))
    from eigen2.runtime.run_folder import find_checkpoint  # imports Lightning, which takes seconds

    checkpoint = find_checkpoint(Path(options.trainer.default_root_dir), options.ckpt_path, or_start=False)
    assert checkpoint is not None
    if options.ensemble and options.get("require_signed") is None:
        from eigen2.cli.seeds import ensemble

        return ensemble(Path(checkpoint))
    return load(checkpoint, options.get("require_signed"))


def _predict(options: Namespace) -> None:
    # imports torch, which takes seconds
    from eigen2.market.serving.trader import Trader
    from eigen2.market.spreadsheets import without_formulas

    try:
        first = None if options.first is None else date.fromisoformat(options.first)
    except ValueError:
        raise UserError(f"--first is {options.first}; it must be a day as YYYY-MM-DD") from None
    trader, output = Trader(_champion(options), options.actor), Path(options.output).expanduser()
    for key, file in options.data.items():
        if file is not None and output.resolve() == Path(file).resolve():
            raise UserError(f"--output {output} is the file of --data.{key}, which would be lost; choose another file")
    orders = trader.orders(options.data.path, first, options.data.membership)
    with writing(f"--output {options.output!r}"):
        write(output, without_formulas(orders).to_csv(index=False, float_format="%.7g"))
    days = orders["date"].unique()
    last = orders.loc[orders["date"] == days[-1], TABLE]
    shown = last.astype({"days_held": object}).where(last.notna(), "")
    text = shown.to_string(index=False, float_format="{:.2f}".format)
    print(f"at the close of {days[-1]:%Y-%m-%d}:\n{printable(text)}")
    print(f"orders       {output}, {len(days)} days, {days[0]:%Y-%m-%d} to {days[-1]:%Y-%m-%d}")


def _export(options: Namespace) -> None:
    champion, folder = _champion(options), Path(options.output).expanduser()
    with writing(f"to {folder}", "choose another --output"):
        written = champion.save(folder, None if options.sign is None else Path(options.sign))
        if options.onnx:
            from eigen2.core.onnx import write_onnx

            with altered_as_user_error("the champion"):
                actor, sizes = champion.actor(options.actor), champion.sizes
            written.append(write_onnx(actor, sizes, folder / GRAPH))
    for path in written:
        print(f"wrote        {path} ({path.stat().st_size / 1e3:,.1f} kB)")
