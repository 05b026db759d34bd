#!/usr/bin/env python3
"""Golden numbers for gb.data.csv, made with pandas.

Usage: python tests/golden/tables.py [--check]   (needs pandas and torch; writes tests/golden/data/csv.jsonl)

A line holds the text of a table, how it is read, and what samples of it are: x (the columns of numbers, missing ones
filled by the mean), ids (categories, sorted; missing ones after the last) and y, and what is known of each column.
"""
import io

import lines
import pandas
import torch

MIXED = """price,"room type",rooms,near,sold
12.5,"flat, small",2,sea,yes
-3e2,"a ""big"" house",,hill,no
 7 ,"two
lines",3,NA,yes
+.5,flat,1e0,sea,no
NaN,,N/A,"",yes
"""
HOUSES = """id;area;kind;price
1;10,5;a;100
2;11;b;200
3;;"b;c";300
"""
TRAIN, TEST = "a,b,c\n1,u,0\n2,v,1\n6,u,1\n", "c,b,a\n1,v,2\n0,w,\n1,,3\n"
# name, text, options of gb.data.csv, arguments of pandas.read_csv; a last table is one to fit to
TABLES = [
    ("mixed", MIXED, {}, {}),
    ("mixed, a category as the target", MIXED, {"target": "sold"}, {}),
    ("mixed, standardized", MIXED, {"target": -1, "standardize": True}, {}),
    ("mixed, CRLF and a byte order mark", "\ufeff" + MIXED.replace("\n", "\r\n").replace("two\r\n", "two\n"), {}, {}),
    ("mixed, old line ends, the last one missing", MIXED.replace("\n", "\r").strip(), {}, {}),
    ("semicolons and decimal commas", HOUSES,
     {"separator": ";", "decimal_comma": True, "target": "price", "columns": {"id": "skip"}},
     {"sep": ";", "decimal": ","}),
    ("numbers as categories", "zip,n\n010,1\n020,2\n010,3\n", {"columns": {"zip": "category"}},
     {"dtype": {"zip": str}}),
    ("no header", "1,x\n\n2,y\n", {"header": False}, {"header": None, "names": ["1", "2"]}),
    ("names in place of the header", "a,b\n1,x\n", {"names": ["one", "two"]}, {"header": 0, "names": ["one", "two"]}),
    ("no quotes", "a,b\n5\" pipe,1\n\"x,2\n", {"quotes": False}, {"quoting": 3}),
    ("tabs", "a\tb\n1\tx y\n2\t z\n", {"separator": "\t"}, {"sep": "\t"}),
    ("own markers", "a,b\n?,x\n3,-\n5,y\n", {"markers": ["?", "-"]}, {"na_values": ["?", "-"]}),
    ("one constant column", "a\n4\n4\n", {"standardize": True}, {}),
    ("true and false", "a,b\nTrue,1\nFalse,2\n", {}, {}),
    ("a word of every alphabet", "a\nz\n\u00e9\n\u4e2d\n\U0001f313\nA\n", {}, {}),
    ("fitted", TEST, {}, {}, TRAIN, {"target": "c", "standardize": True}),
    ("some rows", MIXED, {"rows": [4, 1, 5], "standardize": True}, {}),
    ("fitted on some rows, the others read", MIXED, {"rows": [4, 3]}, {}, MIXED,
     {"rows": [2, 1], "target": "price", "standardize": True}),
    ("fitted, without the target", "b,a\nv,2\nw,\n,3\n", {}, {}, TRAIN, {"target": "c"}),
]


def read(text, options, arguments):
    frame = pandas.read_csv(io.StringIO(text.removeprefix("\ufeff")), **arguments)
    wishes = options.get("columns", {})
    if "rows" in options:
        frame = frame.iloc[[row - 1 for row in sorted(options["rows"])]]
    return frame[[c for c in frame.columns if wishes.get(c) != "skip"]]


def is_number(values):
    return pandas.api.types.is_numeric_dtype(values) and not pandas.api.types.is_bool_dtype(values)


def words(values):
    return [None if pandas.isna(v) else str(v) for v in values]


def learned(frame, name):
    """What there is to know of a column."""
    values = frame[name]
    if is_number(values):
        return {"name": name, "kind": "number", "mean": float(values.mean()), "std": float(values.std(ddof=0))}
    return {"name": name, "kind": "category", "categories": sorted({w for w in words(values) if w is not None})}


def table(name, text, options, arguments, fitted=None, fitted_options=None):
    known = read(fitted, fitted_options, {}) if fitted else read(text, options, arguments)
    frame, how = read(text, options, arguments), fitted_options or options
    target = how.get("target")
    target = known.columns[target] if isinstance(target, int) else target
    x, ids, y, columns = [], [], None, []
    for column in known.columns:
        about = learned(known, column)
        columns.append(about)
        if column not in frame.columns:
            about["missing"] = 0
            continue
        about["missing"] = int(frame[column].isna().sum())
        if about["kind"] == "number":
            values = frame[column].astype("float64").fillna(about["mean"])
            if how.get("standardize") and column != target:
                values = (values - about["mean"]) / (about["std"] or 1)
            values = torch.tensor(values.to_numpy(), dtype=torch.float32)
        else:
            place = {w: i for i, w in enumerate(about["categories"])}
            about["unseen"] = sum(w is not None and w not in place for w in words(frame[column]))
            values = torch.tensor([place.get(w, len(place)) for w in words(frame[column])])
        if column == target:
            y = values
        else:
            (x if about["kind"] == "number" else ids).append(values)
    tensors = {"x": torch.stack(x, 1) if x else None, "ids": torch.stack(ids, 1) if ids else None, "y": y}
    row = {"name": name, "text": text, "options": options, "columns": columns}
    if fitted:
        row |= {"fitted": fitted, "fitted_options": fitted_options}
    return row | {"tensors": {n: lines.tensor(t) for n, t in tensors.items() if t is not None}}


if __name__ == "__main__":
    lines.main("data", ["csv"], lambda family: (table(*given) for given in TABLES))
