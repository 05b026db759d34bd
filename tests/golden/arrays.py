#!/usr/bin/env python3
"""Files of NumPy for gb.data.npy and gb.data.npz.

Usage: python tests/golden/arrays.py   (needs NumPy and torch; writes tests/golden/data/arrays.npz, arrays.zip and
arrays.jsonl)

arrays.npz is deflated and arrays.zip stored, both hold every array; a line of arrays.jsonl holds the tensor that an
array is read as, of a long one the beginning. Arrays of other versions of the format, and what NumPy writes and nobody
should load, are lines with the bytes of a .npy file, and what is said of it.
"""
import io
import json
import os
import zipfile

import lines
import numpy as np
import torch

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
DATE = (1980, 1, 1, 0, 0, 0)

grid = np.arange(24).reshape(2, 3, 4)
ARRAYS = {
    **{f"type {t}": (grid[0] - (0 if t[0] in "u" else 5)).astype(t) for t in
       ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]},
    "bool": grid[0] % 2 == 1,
    **{f"big {t}": (grid + 0.5 if t[1] == "f" else grid * 1000).astype(t) for t in [">f4", ">f8", ">i2", ">i8", ">u2"]},
    "fortran": np.asfortranarray(grid.astype("f4")),
    "fortran, big": np.asfortranarray(grid.astype(">i4")),
    "fortran, a row": np.asfortranarray(grid.astype("f4")[:1, :, :1]),
    "scalar": np.array(2.5),
    "vector": np.arange(5, dtype="f4"),
    "empty": np.zeros((0, 3), "f4"),
    "eight dimensions": np.arange(8, dtype="i4").reshape(2, 1, 2, 1, 1, 2, 1, 1),
    "large u8": np.array([0, 2**63 - 1], "u8"),
    "extremes": np.array([np.inf, -np.inf, 1e-45, -0.0], "f4"),
    "long": (np.arange(40000) % 7).astype("u2"),
    "folder/name": np.ones(1, "f4"),
}


def as_read(array):
    kinds = {"u2": "i4", "u4": "i8", "u8": "i8"}
    plain = np.ascontiguousarray(array).reshape(array.shape)
    plain = plain.astype(plain.dtype.newbyteorder("="))
    code = plain.dtype.str[1:]
    return torch.from_numpy(plain.astype(kinds.get(code, code)))


def npy(array, version=None):
    to = io.BytesIO()
    np.lib.format.write_array(to, array, version=version)
    return to.getvalue()


# What is said of arrays that are not loaded; None: they are.
OTHERS = [
    ("version 2", npy(ARRAYS["vector"], (2, 0)), None),
    ("version 3", npy(ARRAYS["vector"], (3, 0)), None),
    ("objects", npy(np.array([{}, None], dtype=object)), "Python objects"),
    ("structures", npy(np.zeros(2, dtype=[("a", "f4"), ("b", "i4")])), "structures"),
    ("text", npy(np.array(["a", "b"])), "dtype '<U1'"),
    ("complex", npy(np.zeros(2, "c8")), "dtype '<c8'"),
    ("dates", npy(np.zeros(2, "M8[s]")), "dtype '<M8[s]'"),
    ("too large u8", npy(np.array([1, 2**63], "u8")), "element 2 is 9223372036854775808"),
    ("nine dimensions", npy(np.zeros((1,) * 9, "f4")), "more than 8 dimensions"),
]


def write(path, method):
    with zipfile.ZipFile(path, "w", method) as archive:
        def put(name, data):
            info = zipfile.ZipInfo(name, DATE)
            info.compress_type = method
            with archive.open(info, "w", force_zip64=True) as member:  # as numpy.savez does
                member.write(data)
        for name, array in ARRAYS.items():
            put(name + ".npy", npy(array))
        put("notes.txt", b"no array")


if __name__ == "__main__":
    write(os.path.join(FOLDER, "arrays.npz"), zipfile.ZIP_DEFLATED)
    write(os.path.join(FOLDER, "arrays.zip"), zipfile.ZIP_STORED)
    rows = [{"name": name, "tensor": lines.tensor(as_read(a)[:200] if a.ndim else as_read(a))} for name, a in ARRAYS.items()]
    for name, data, said in OTHERS:
        rows.append({"name": name, "npy": data.hex(), **({"said": said} if said else {})})
    with open(os.path.join(FOLDER, "arrays.jsonl"), "w") as file:
        for row in sorted(rows, key=lambda row: row["name"]):
            file.write(json.dumps(row) + "\n")
