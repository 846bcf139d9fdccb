import csv
import errno
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigen2.files import AppendFile
from eigen2.memory.csvfile import ResumableCsv


def read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(path: Path, rows: list[dict[str, Any]], first: int = 0) -> None:
    table = ResumableCsv(path)
    table.start(first)
    for row in rows:
        table.append(row)
    table.close()


def test_rows_are_on_disk_as_soon_as_they_are_appended(tmp_path: Path) -> None:
    table = ResumableCsv(tmp_path / "folder" / "m.csv")
    table.start(0)
    assert table.path.read_bytes() == b""
    table.append({"generation": 0, "phase": 'a "b", c', "loss": 0.1})
    assert table.path.read_bytes() == b'generation,phase,loss\n0,"a ""b"", c",0.1\n'
    table.append({"loss": 1e-300, "generation": 1})
    assert table.path.read_bytes().splitlines()[2:] == [b"1,,1e-300"]
    table.close()
    table.close()


def test_numbers_of_numpy_are_written_like_those_of_python(tmp_path: Path) -> None:
    row = {"generation": np.int32(7), "a": np.float64(0.1), "b": np.float32(0.5), "c": np.int64(2**62)}
    write(tmp_path / "m.csv", [{**row, "d": math.nan, "e": math.inf, "f": True}])
    assert (tmp_path / "m.csv").read_text() == f"generation,a,b,c,d,e,f\n7,0.1,0.5,{2**62},,inf,1\n"


def test_a_file_cut_at_any_byte_resumes_with_its_whole_rows(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    write(path, [{"generation": g, "name": 'ä, "q"', "x": 12.5 + g} for g in range(3)])
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        table = ResumableCsv(path)
        table.start(2)
        table.close()
        ends = list(itertools.accumulate(len(line) for line in lines))
        kept = sum(end <= cut for end in ends)  # the header and rows 0, 1, 2
        assert path.read_bytes() == b"".join(lines[: min(kept, 3)])


def test_damaged_lines_are_dropped_and_the_others_kept_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    good = [b"generation,name\n", b"0,\xff\xfe\n", b"1,x\n"]
    bad = b"\n1\n1,2,3\nx,y\n\0\0\0\n" + 200_000 * b"\0" + b"1,2\n"
    path.write_bytes(good[0] + good[1] + bad + good[2] + b"1,tor")
    table = ResumableCsv(path)
    table.start(2)
    table.close()
    assert path.read_bytes() == b"".join(good)
    path.write_bytes(b"\n\n")
    table.start(2)
    table.close()
    assert path.read_bytes() == b""
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.csv"]


def test_columns_may_appear_at_any_time_and_a_new_run_has_its_own(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    write(path, [{"generation": 0, "a": 1}, {"generation": 1, "b": 2, "a": 3}, {"generation": 2, "c": 4}])
    assert path.read_text() == "generation,a,b,c\n0,1,,\n1,3,2,\n2,,,4\n"
    write(path, [{"generation": 1, "d": 5}], first=1)
    assert path.read_text() == "generation,a,b,c,d\n0,1,,,\n1,,,,5\n"
    write(path, [{"generation": 0, "new": 2}])
    assert path.read_text() == "generation,new\n0,2\n"


def test_a_kill_while_the_file_is_replaced_leaves_the_old_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.csv"
    table = ResumableCsv(path)
    table.start(0)
    table.append({"generation": 0, "a": 1})

    def killed(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", killed)
        with pytest.raises(KeyboardInterrupt):
            table.append({"generation": 1, "b": 1})
    assert path.read_text() == "generation,a\n0,1\n"
    write(path, [{"generation": 1, "b": 2}], first=1)
    assert path.read_text() == "generation,a,b\n0,1,\n1,,2\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.csv"]


def test_rows_that_the_disk_refused_are_not_written_again_by_a_fit_from_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, full = ResumableCsv(tmp_path / "m.csv"), {"disk": False}
    append = AppendFile.append

    def refuse(file: AppendFile, content: bytes) -> None:
        if full["disk"]:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(file, content)

    monkeypatch.setattr(AppendFile, "append", refuse)
    table.start(0)
    assert table.append({"generation": 0, "a": 1})
    full["disk"] = True
    assert not any(table.append({"generation": generation, "a": 1}) for generation in (1, 2))
    full["disk"] = False
    table.start(2)
    assert table.append({"generation": 2, "a": 5})
    assert table.path.read_text() == "generation,a\n0,1\n1,1\n2,5\n"


def test_wrong_use_is_refused(tmp_path: Path) -> None:
    table = ResumableCsv(tmp_path / "m.csv")
    table.start(0)
    torn = [{"generation": 0, "phase": "a\nb"}, {"generation": 0, "a\rb": 1}]
    for row in ({"loss": 1.0}, {"generation": 1.0}, {"generation": "1"}, *torn):
        with pytest.raises(ValueError, match="single line" if row in torn else "integer 'generation'"):
            table.append(row)
    assert table.path.read_text() == ""
    table.path.write_text("date,price\n1,2\n")  # not written by eigen2
    for first in (0, 1):
        with pytest.raises(ValueError, match="no column 'generation'"):
            table.start(first)
    assert table.path.read_text() == "date,price\n1,2\n"


_texts = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=5)
_values = _texts | st.floats(allow_nan=False) | st.integers()
_rows = st.dictionaries(st.sampled_from(["a", "b", "c,d", 'e"f', " g"]), _values)


@given(rows=st.lists(_rows, max_size=8), first=st.integers(1, 8), cut=st.integers(0, 8))
@settings(max_examples=60, deadline=None)
def test_any_rows_read_back_the_same_whenever_the_run_was_cut(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], first: int, cut: int
) -> None:
    path = tmp_path_factory.mktemp("csv") / "m.csv"
    keyed = [{"generation": g, **row} for g, row in enumerate(rows)]
    write(path, keyed[: max(first, cut)])
    write(path, keyed[first:], first=first)
    stored = read(path)
    assert [int(row["generation"]) for row in stored] == list(range(len(rows)))
    for row, cells in zip(keyed, stored, strict=True):
        assert {name for name, cell in cells.items() if cell != ""} == set(row)
        for name, value in row.items():
            assert type(value)(cells[name]) == value
