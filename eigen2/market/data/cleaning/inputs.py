"""Price files named by the user or found in folders, read as one stream of rows; broken ones in folders are skipped."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from eigen2.errors import UserError
from eigen2.market.data.cleaning.layouts import Input
from eigen2.market.data.csv_format import CsvFormat
from eigen2.market.data.files import SUFFIX, SUFFIXES, quoted, require_file
from eigen2.market.data.source import check_not_future, check_not_returns

# rows of a file that are read before any is passed on, so that a broken file can be skipped
HELD_ROWS = 1_000_000


class Inputs:
    """Price files, each with its own layout; a folder stands for the price files directly in it, sorted by name.

    A file of a folder that cannot be read is skipped; one that is named is refused.

    Attributes:
        files: the files to read; after `batches`, those that were read.
        skipped: for each file that was skipped, the line that says why.

    Args:
        paths: files and folders.
        form: how text files are written.

    Raises:
        UserError: as for `Input`; when nothing is named, a folder has no price file that can be read, or a file is
            named twice.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        form: CsvFormat = CsvFormat(),
    ) -> None:
        self.files: list[Input] = []
        self.skipped: list[str] = []
        self._in_folder: set[Path] = set()
        for path in _list_files(paths, self._in_folder):
            try:
                self.files.append(Input(path, form))
            except UserError as error:
                self._skip(path, error)
        self._check_some()

    def batches(self, indicators: Sequence[str] = ()) -> Iterator[pd.DataFrame]:
        """Yield the rows of all files as `Input.batches` does.

        Raises:
            UserError: a file cannot be read, has dates after today, or is a table of returns; `indicators`, series
                that are not prices, may be negative.
        """
        for source in [*self.files]:
            batches = self._checked(source, indicators)
            held: list[pd.DataFrame] = []
            try:
                for batch in batches:
                    held.append(batch)
                    if sum(map(len, held)) >= HELD_ROWS:
                        break
            except UserError as error:
                self._skip(source.path, error)
                self.files.remove(source)
                continue
            yield from held
            held.clear()
            yield from batches
        self._check_some()

    def _checked(self, source: Input, indicators: Sequence[str]) -> Iterator[pd.DataFrame]:
        negative = nonzero = 0
        for batch in source.batches():
            check_not_future(batch["date"].max(), source.where)
            close = batch["close"].to_numpy()[~batch["ticker"].isin(list(indicators)).to_numpy()]
            negative += int((close < 0).sum())
            nonzero += int((np.abs(close) > 0).sum())
            yield batch
        if source.has_quotes:
            return
        check_not_returns(negative, nonzero, source.where, "give prices, or name series that are not with --indicators")

    def _skip(self, path: Path, error: UserError) -> None:
        if path not in self._in_folder:
            raise error
        self.skipped.append(str(error))

    def _check_some(self) -> None:
        if not self.files:
            more = f" (the first of {len(self.skipped):,} files, none of which can be read)"
            raise UserError(self.skipped[0] + more * (len(self.skipped) > 1))


def _list_files(paths: Sequence[str | Path], in_folder: set[Path]) -> list[Path]:
    """Return the files that are named, and those of folders, which are added to `in_folder`."""
    files: list[Path] = []
    for path in map(Path, paths):
        if not os.path.isdir(path):
            files.append(require_file(path))
            continue
        found = [each for each in path.iterdir() if SUFFIX.search(each.name) and not each.name.startswith((".", "~$"))]
        found = sorted((each for each in found if each.is_file()), key=lambda each: each.name)
        if not found:
            raise UserError(f"{quoted(path)} has no file that ends in {SUFFIXES}: name another folder")
        files += found
        in_folder |= {*found}
    if not files:
        raise UserError("no price files are named: name at least one file or folder")
    times = Counter(file.resolve() for file in files)
    if twice := [file for file in files if times[file.resolve()] > 1]:
        raise UserError(f"{quoted(twice[-1])} is named twice, and every row of it would be a duplicate: name it once")
    return files
