"""The files of records: records.csv, arrays.npz, and facts.json, which holds the SHA-256 digests of both.

Records that are kept in a repository are packed: records.csv.xz in place of records.csv, which pandas reads as well.
"""

import csv
import io
import json
import lzma
import zipfile
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.records.files import write_bytes, write_text

Array = NDArray[Any]
Document = dict[str, Any]

SCHEMA = 2
KINDS = {"b": "bool", "i": "int64", "u": "int64", "f": "float64"}
TABLE, PACKED, ARRAYS, FACTS = "records.csv", "records.csv.xz", "arrays.npz", "facts.json"

# UPGRADES[n] turns the facts.json of schema n into schema n + 1
UPGRADES: dict[int, Callable[[Document], Document]] = {1: lambda document: document}  # schema 2 may be packed


def write(
    folder: Path,
    columns: Mapping[str, Array],
    facts: Mapping[str, Any],
    arrays: Mapping[str, Array],
    packed: bool = False,
) -> None:
    """Write the folder; facts.json comes last, so that an incomplete folder is recognized."""
    folder.mkdir(parents=True, exist_ok=True)
    table = table_bytes(columns)
    contents = {PACKED: lzma.compress(table)} if packed else {TABLE: table}
    contents |= {ARRAYS: arrays_bytes(arrays)} if arrays else {}
    for name, data in contents.items():
        write_bytes(folder / name, data)
    document = {
        "schema": SCHEMA,
        "files": {name: sha256(data).hexdigest() for name, data in contents.items()},
        "columns": {name: str(values.dtype) for name, values in columns.items()},
        "facts": dict(facts),
    }
    write_text(folder / FACTS, json.dumps(document, indent=1, allow_nan=False) + "\n")
    for name in {TABLE, PACKED, ARRAYS} - contents.keys():
        (folder / name).unlink(missing_ok=True)


def read(folder: Path) -> tuple[dict[str, Array], dict[str, Any], dict[str, Array]]:
    """Columns, facts and arrays of a complete folder."""
    document = upgrade(_document(folder), folder)
    contents = {name: _content(folder, name, digest) for name, digest in document["files"].items()}
    arrays = read_arrays(contents[ARRAYS]) if ARRAYS in contents else {}
    table = lzma.decompress(contents[PACKED]) if PACKED in contents else contents[TABLE]
    return read_table(table, document["columns"]), document["facts"], arrays


def upgrade(document: Document, folder: Path) -> Document:
    """The document in the current schema; one written by a later version of holdfast is refused."""
    version = document["schema"]
    if version > SCHEMA:
        raise ValueError(
            f"{folder} holds records of schema {version} but this holdfast knows up to {SCHEMA}; use a newer holdfast"
        )
    for schema in range(version, SCHEMA):
        document = UPGRADES[schema](document)
    return document


def table_bytes(columns: Mapping[str, Array]) -> bytes:
    """The columns as csv; floats are written with repr, which reads back as the same float."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(columns)
    cells = [[repr(value) for value in values.tolist()] for values in columns.values()]
    text.writelines(",".join(row) + "\n" for row in zip(*cells, strict=True))
    return text.getvalue().encode()


def read_table(data: bytes, kinds: Mapping[str, str]) -> dict[str, Array]:
    """The columns of a csv, each of the type stored in facts.json."""
    names, *rows = csv.reader(io.StringIO(data.decode(), newline=""))
    cells = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    return {name: _parsed(values, kinds[name]) for name, values in zip(names, cells, strict=True)}


def arrays_bytes(arrays: Mapping[str, Array]) -> bytes:
    """The arrays as npz; np.savez would read some names (``file``) as its arguments."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, values in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, values, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getvalue())
    return stream.getvalue()


def read_arrays(data: bytes) -> dict[str, Array]:
    """The arrays of a npz; nothing in it is unpickled."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name.removesuffix(".npy"): io.BytesIO(archive.read(name)) for name in archive.namelist()}
    return {name: np.lib.format.read_array(data, allow_pickle=False) for name, data in members.items()}


def _parsed(cells: tuple[str, ...], kind: str) -> Array:
    if kind == "bool":
        return np.array([cell == "True" for cell in cells], dtype=np.bool_)
    return np.array([(int if kind == "int64" else float)(cell) for cell in cells], dtype=kind)


def _document(folder: Path) -> Document:
    try:
        document = json.loads((folder / FACTS).read_bytes())
    except FileNotFoundError:
        raise FileNotFoundError(f"{folder} has no {FACTS}, so its records are incomplete; evaluate again") from None
    except ValueError:
        raise ValueError(f"{folder / FACTS} is not JSON, so its records are incomplete; evaluate again") from None
    if not isinstance(document, dict) or not isinstance(document.get("schema"), int):
        raise ValueError(
            f"{folder / FACTS} has no schema version, so holdfast did not write it; name a folder of records"
        )
    return document


def _content(folder: Path, name: str, digest: str) -> bytes:
    path = folder / name
    data = path.read_bytes() if path.exists() else b""
    if sha256(data).hexdigest() != digest:
        raise ValueError(f"{path} does not match its checksum in {FACTS}: half-written or edited; evaluate again")
    return data
