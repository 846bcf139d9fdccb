"""Train, test and predict on daily prices in a few lines of Python, for notebooks and scripts."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from lightning.pytorch import Trainer, seed_everything

from callbacks import GarbageCollector, MemoryProfiler
from eigen2.core.config import from_settings, plain_values, require_known
from eigen2.core.datamodule import TestResult
from eigen2.core.export import CONFIG, ExportedChampion, load
from eigen2.erl.module import ERLModule
from eigen2.errors import UserError, require_range
from eigen2.files import Folder
from eigen2.market.data.frames import frame_prices
from eigen2.market.data.universe import Universe
from eigen2.market.datamodule import MarketDataModule
from eigen2.market.serving.trader import Trader
from eigen2.market.simulation.account import AccountRules
from eigen2.market.simulation.rules import TradingRules
from eigen2.market.synthetic.generator import SyntheticMarket
from eigen2.runtime.checkpoint import ChampionCheckpoint, DurableCheckpointIO, GenerationCheckpoint
from eigen2.runtime.console import GenerationReport, hide_library_messages
from eigen2.runtime.logger import RunLogger
from eigen2.runtime.run_folder import find_checkpoint, generations_of, locked_folder

Prices = pd.DataFrame | str | Path
SILENT: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
GROUPS: dict[str, type] = {
    "rules": TradingRules,
    "account": AccountRules,
    "investable": Universe,
    "synthetic": SyntheticMarket,
}
"""Settings that are groups, which may be dictionaries."""
QUIET: dict[str, Any] = {"enable_model_summary": False, "num_sanity_val_steps": 0, "log_every_n_steps": 1}


@dataclass(frozen=True)
class Result:
    """A finished fit.

    Attributes:
        module: the population; it has weights after `fit`, and after `open` once it was tested.
        data: its data module, with the panel.
        folder: the folder of the fit, with checkpoints, curves and the champion's trades.
    """

    module: ERLModule
    data: MarketDataModule
    folder: Path
    # contents of metrics.csv, with which those of the run begin wherever it is; none if unknown
    _metrics: bytes = field(default=b"", repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the folder alone; the copy is opened there."""
        return Result.open, (str(self.run_folder),)

    def __copy__(self) -> Result:
        """Return the result itself, whose parts do not change."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Result:
        """Return the result itself, whose parts do not change."""
        return self

    @property
    def run_folder(self) -> Path:
        """Return where the run is now: a later fit in the same folder moves it to `earlier/1` and so on.

        Raises:
            UserError: the run is no longer there as it was.
        """
        if not self._metrics:
            return self.folder
        for folder in (self.folder, *sorted(self.folder.glob("earlier/*"))):
            if _read_metrics(folder).startswith(self._metrics):
                return folder
        raise UserError(f"the run in {self.folder} is not there any more; open it where it is by Result.open")

    @classmethod
    def open(cls, folder: str | Path) -> Result:
        """Return the fit of a run's folder, whether of `eigen2.fit` or of the command line.

        Raises:
            UserError: the folder has no champion, or it was fitted with classes that are not eigen2's.
        """
        from eigen2.cli.training import reopened  # takes a second, which a fit does not need

        folder = Path(folder).expanduser()
        module, data = reopened(folder)
        if not (isinstance(module, ERLModule) and isinstance(data, MarketDataModule)):
            raise UserError(f"the run in {folder} trades no prices: test it with python -m eigen2.cli test")
        folder = folder.resolve()
        return cls(module, data, folder, _read_metrics(folder))

    @property
    def metrics(self) -> pd.DataFrame:
        """Return the metrics of each generation, see docs/curves.md."""
        return pd.read_csv(self.run_folder / "metrics.csv", index_col="generation")

    @cached_property
    def champion(self) -> ExportedChampion:
        """Return the champion; its `save` writes it to a folder.

        Raises:
            UserError: there is none yet, as no generation was validated.
        """
        return load(_best(self.run_folder))

    def test(self, checks: bool = False) -> TestResult:
        """Play the champion on the holdout, beside baselines; `text` of the result is the table, `metrics` numbers.

        With `checks` also at other costs and a day late, and look for decisions that change with later prices.

        Raises:
            UserError: the holdout has fewer than two days, or there is no champion.
        """
        folder = self.run_folder
        checkpoint = _best(folder)
        trainer = Trainer(default_root_dir=folder, devices=1, **SILENT, **QUIET)
        self.module.test_checks = checks
        self.module.generations_run = max(self.module.generations_run, generations_of(checkpoint))
        with locked_folder(folder):
            trainer.test(self.module, self.data, ckpt_path=checkpoint, verbose=False)
            _write_report(folder)
        assert self.module.test_result is not None
        return self.module.test_result

    def predict(self, prices: Prices, first: date | None = None, membership: str | Path | None = None) -> pd.DataFrame:
        """Return the champion's decisions at the close of each new day, see `Trader.orders`.

        Args:
            prices: a DataFrame or file as for `fit`, with the context of the first new day.
            first: day of the first decision; None is the last day that the fit used.
            membership: file of the days on which tickers may be bought, with the new days; None for all days.

        Raises:
            UserError: the prices lack a feature, have no day to decide on, or too few before it, or the file of
                memberships cannot be read.
        """
        return Trader(self.champion, self.module.actor_class).orders(prices, first, membership)


def _read_metrics(folder: Path) -> bytes:
    file = folder / "metrics.csv"
    return file.read_bytes() if file.is_file() else b""


def _write_report(folder: Path) -> None:
    from eigen2.report.page import write_report_or_warn  # imported after training, which needs the memory

    write_report_or_warn(folder)


def fit(
    prices: Prices | None = None,
    generations: int = 25,
    *,
    folder: str | Path = "lightning_logs",
    seed: int = 42,
    **settings: Any,
) -> Result:
    """Train a population on daily prices, and return its champion with what tests and uses it.

    It is a Trainer with an `ERLModule`, a `MarketDataModule` and the callbacks of the command line but pictures, limit
    on memory and clean stop on signals; use these for anything else. A DataFrame is kept in the folder, for `test` and
    the command line. An earlier run in the folder is moved to `earlier/1`, `earlier/2` and so on, where its `Result`
    follows it.

    Args:
        prices: a DataFrame, see `eigen2.market.data.frames.frame_prices`, or a Parquet, CSV or Excel file; None is
            the sample.
        generations: generations to train for (1 or more).
        folder: folder of the run, made if it is missing.
        seed: seed of all randomness (0 or more).
        settings: settings of `ERLModule` and `MarketDataModule`, such as `population_size` or `holdout_from`; groups
            such as `rules` may be dictionaries.

    Raises:
        UserError: a setting is unknown or out of range, or the prices cannot be used.
    """
    generations, seed = plain_values(generations), plain_values(seed)
    require_range("generations", generations, least=1, whole=True)
    require_range("seed", seed, least=0, most=2**32 - 1, whole=True)
    hide_library_messages()
    of_module, of_data = _split(plain_values(settings))
    for name in ("indicators", "features"):
        if isinstance(of_data.get(name), str):
            raise UserError(f"{name} is {of_data[name]!r}; give a list of names")
    of_data |= {
        name: from_settings(cls, name, of_data[name]) for name, cls in GROUPS.items() if of_data.get(name) is not None
    }
    if prices is not None and of_data.get("synthetic") is not None:
        raise UserError("fit is given prices and a synthetic market: leave one out")
    root, frame, path = Path(folder).expanduser().resolve(), None, None if prices is None else str(prices)
    if isinstance(prices, pd.DataFrame):
        frame = frame_prices(prices, of_data.get("features", ()))
        values = pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes()
        digest = hashlib.blake2b("\0".join(frame.columns).encode() + values, digest_size=8)
        path = str(root / "prices" / f"{digest.hexdigest()}.parquet")
    data, module = MarketDataModule(path, **of_data), ERLModule(**of_module)
    seed_everything(seed, verbose=False)
    with locked_folder(root):
        if frame is not None and path is not None and not Path(path).exists():
            with (Folder(root) / "prices").replacing(Path(path).name) as draft:
                frame.to_parquet(draft, index=False)
        del frame  # memory
        callbacks = [GarbageCollector(), GenerationReport(), MemoryProfiler(), ChampionCheckpoint()]
        trainer = Trainer(
            max_epochs=generations,
            default_root_dir=root,
            devices=1,
            logger=RunLogger(str(root)),
            callbacks=[*callbacks, GenerationCheckpoint()],
            plugins=[DurableCheckpointIO()],
            **QUIET,
        )
        trainer.fit(module, data)
        _write_report(root)
    return Result(module, data, root, _read_metrics(root))


def test(run: Result | str | Path) -> TestResult:
    """Test the champion of a fit, given as its result or its folder, see `Result.test`."""
    return (run if isinstance(run, Result) else Result.open(run)).test()


def predict(
    run: Result | str | Path, prices: Prices, first: date | None = None, membership: str | Path | None = None
) -> pd.DataFrame:
    """Return the decisions of a champion, see `Result.predict`.

    `run` is the result of a fit, its folder, or the folder of an exported champion.
    """
    if isinstance(run, Result):
        return run.predict(prices, first, membership)
    folder = Path(run).expanduser()
    champion = load(folder if (folder / CONFIG).is_file() else _best(folder))
    return Trader(champion).orders(prices, first, membership)


def _best(folder: Path) -> str:
    checkpoint = find_checkpoint(folder, "best", or_start=False)
    assert checkpoint is not None  # raised, as it may not start anew
    return checkpoint


def _split(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the module and those of the data module; raise a UserError for others."""
    module, data = ({*inspect.signature(cls).parameters} - {"path"} for cls in (ERLModule, MarketDataModule))
    require_known("fit", settings, module | data, see="ERLModule and MarketDataModule")
    own, others = ({name: value for name, value in settings.items() if name in names} for names in (module, data))
    return own, others
