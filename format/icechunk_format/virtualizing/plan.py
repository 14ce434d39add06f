"""Decides which files are taken, and where each lies, from what the scan has found.

Algorithm
---------
1. The model is the header of the repository's record, or the one that most files have.
2. Files are compared with it; values that they share are compared by digests.
3. Keys and lengths along the concatenated dimensions come from names, coordinates or the order of
   the list, and give each file its place.
4. Files that break the chunk grid are refused, and the others are arranged again.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from icechunk_format.errors import IcechunkError, InvalidInputError
from icechunk_format.virtualizing.arrange import Placed, arrange, key_range
from icechunk_format.virtualizing.compare import can_split, differences
from icechunk_format.virtualizing.record import Record
from icechunk_format.virtualizing.report import KNOWN, REFRESHED, REFUSED, Row
from icechunk_format.virtualizing.scan import Header, coordinate_paths, is_loadable, metadata_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icechunk_format.arrays.zarr_json import ArrayMetadata
    from icechunk_format.virtualizing.arrange import Template
    from icechunk_format.virtualizing.scan import ScannedFile, ScannedPiece


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How arrays of files become arrays of the repository.

    Parameters
    ----------
    dims, new_dims
        The concatenated dimensions; those that files do not have.
    model
        The header that files are compared with.
    documents
        Its arrays by path.
    loaded, spread
        Arrays whose values are stored; scalars that become arrays along the first dimension.
    """

    dims: tuple[str, ...]
    new_dims: tuple[str, ...]
    model: Header
    documents: Mapping[str, ArrayMetadata]
    loaded: frozenset[str]
    spread: frozenset[str]

    def added_dims(self, path: str) -> tuple[str, ...]:
        """Return the dimensions that an array gets before its own."""
        document = self.documents[path]
        if document.ndim == 0:
            name = path.rpartition("/")[2]
            if name in self.new_dims:
                return (name,)
            return self.dims[:1] if path in self.spread else ()
        is_data = path not in coordinate_paths({p: d.raw for p, d in self.documents.items()})
        has_own = bool(self.own_dims(path))
        is_concatenated = has_own or not (set(self.dims) - set(self.new_dims))
        return self.new_dims if is_data and is_concatenated else ()

    def own_dims(self, path: str) -> tuple[str, ...]:
        """Return the concatenated dimensions that an array has in files."""
        return tuple(d for d in self.documents[path].dimension_names or () if d in self.dims)

    def is_stored(self, path: str) -> bool:
        """Whether values of an array are stored, and not references."""
        return path in self.loaded or (
            self.documents[path].ndim == 0 and bool(self.added_dims(path))
        )


@dataclass(slots=True, kw_only=True)
class Member:
    """A file that was scanned, and its part in the plan."""

    row: Row
    scanned: ScannedFile
    piece: int
    placed: Placed | None = None
    is_changed: bool = False
    is_empty: bool = False
    """Whether it has no element along a concatenated dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """Which files are taken, and where they lie.

    Parameters
    ----------
    taken
        New and changed files with their places.
    files
        All files with their places, those of the repository included.
    sizes
        Length of each concatenated dimension.
    moved
        By URL: the places that files of the repository leave.
    splits
        By array: the chunk length along the first axis, where chunks are cut.
    """

    layout: Layout
    rows: list[Row]
    taken: list[Member]
    files: list[Placed]
    sizes: tuple[int, ...]
    old_starts: Mapping[str, tuple[int, ...]]
    splits: Mapping[str, int]
    digests: dict[str, str]
    model_file: Member | None = None

    @property
    def is_refused(self) -> bool:
        """Whether a file was refused."""
        return any(row.status == REFUSED for row in self.rows)


def decide(
    pieces: Sequence[ScannedPiece],
    headers: Sequence[Header],
    *,
    dims: tuple[str, ...],
    template: Template | None,
    loadable: tuple[str, ...] | None,
    record: Record | None,
) -> Decided:
    """Decide which files are taken.

    Parameters
    ----------
    pieces, headers
        What the scan has found; see ``merged``.
    dims
        The concatenated dimensions, slowest first; none for a single file.
    record
        What the group was made of, where it has arrays.

    Raises
    ------
    InvalidInputError
        No file can be used at all, or the options do not fit the record.
    """
    return _Decider(pieces, headers, dims, template, loadable, record).decide()


@dataclass(slots=True)
class _Decider:
    pieces: Sequence[ScannedPiece]
    headers: Sequence[Header]
    dims: tuple[str, ...]
    template: Template | None
    loadable: tuple[str, ...] | None
    record: Record | None
    members: list[Member] = field(default_factory=list)

    def decide(self) -> Decided:
        rows: list[Row] = []
        for number, piece in enumerate(self.pieces):
            for scanned in piece.files:
                row = Row(file=scanned.file.url)
                rows.append(row)
                if scanned.is_known:
                    row.status = KNOWN
                elif scanned.problem is not None:
                    row.refuse(scanned.problem, array=scanned.array)
                else:
                    self.members.append(Member(row=row, scanned=scanned, piece=number))
        layout, model_file = self._layout(rows)
        digests = self._compare(layout, model_file)
        self._place(layout)
        old = [] if self.record is None else self.record.files
        by_url = {placed.file.url: placed for placed in old}
        old_starts = {url: placed.starts for url, placed in by_url.items()}
        self._refresh(by_url)
        while True:
            members = [m for m in self.members if m.row.status != REFUSED and m.placed is not None]
            fresh = [m.placed for m in members if not m.is_changed and m.placed is not None]
            found = arrange([*old, *fresh], len(layout.dims))
            of_placed = {id(member.placed): member for member in members}
            for placed, problem, other in found.refused:
                member = of_placed.get(id(placed))
                if member is not None:
                    where = None if other is None else other.url
                    along = ", ".join(layout.dims)
                    text = f"{problem} along {along}"
                    if self.template is None:
                        text += "; if its coordinate is wrong, give places by template="
                    member.row.refuse(text, other=where)
            splits = self._splits(layout, members)
            if found.refused or self._refuse_misaligned(layout, found.files, members, splits):
                continue
            break
        for placed, note in found.notes:
            if id(placed) in of_placed:
                of_placed[id(placed)].row.add_note(note)
        for member in members:
            if member.is_changed and member.placed is not None:
                member.placed.starts = by_url[member.placed.file.url].starts
        return Decided(
            layout=layout,
            rows=rows,
            taken=members,
            files=found.files,
            sizes=found.sizes,
            old_starts=old_starts,
            splits=splits,
            digests=digests,
            model_file=model_file,
        )

    # -- the model --------------------------------------------------------------------------

    def _layout(self, rows: list[Row]) -> tuple[Layout, Member | None]:
        if self.record is not None:
            given = self.record
            if self.dims and set(self.dims) != set(given.dims):
                raise InvalidInputError(
                    f"the group was concatenated along {', '.join(given.dims) or 'nothing'}, and "
                    f"now along {', '.join(self.dims)}; name the same dimensions",
                    option="concat_dim",
                )
            documents = {path: metadata_of(text, path) for path, text in given.model.arrays}
            layout = Layout(
                dims=given.dims,
                new_dims=given.new_dims,
                model=given.model,
                documents=documents,
                loaded=frozenset(given.loaded),
                spread=frozenset(given.spread),
            )
            return layout, None
        full = [
            member
            for member in self.members
            if _empty_dim(self.headers[member.scanned.header], self.dims) is None
        ]
        counted = Counter(member.scanned.header for member in full or self.members)
        if not counted:
            model = Header(arrays=(), groups=())
            empty = Layout(
                dims=self.dims,
                new_dims=(),
                model=model,
                documents={},
                loaded=frozenset(),
                spread=frozenset(),
            )
            return empty, None
        most = max(counted.values())
        model_file = next(m for m in self.members if counted[m.scanned.header] == most)
        model = self.headers[model_file.scanned.header]
        documents = {path: metadata_of(text, path) for path, text in model.arrays}
        inside = {dim for d in documents.values() for dim in d.dimension_names or ()}
        if not self.dims and len(rows) > 1:
            raise InvalidInputError(
                f"{len(rows):,} files are named, and no dimension along which they follow one "
                f"another; give concat_dim=, one of {', '.join(sorted(map(str, inside)))} or a new "
                "one, or a template=",
                option="concat_dim",
            )
        new_dims = tuple(dim for dim in self.dims if dim not in inside)
        loaded = {p for p, d in documents.items() if is_loadable(d, p, self.loadable)}
        spread = frozenset(self._spread(documents, new_dims))
        layout = Layout(
            dims=self.dims,
            new_dims=new_dims,
            model=model,
            documents=documents,
            loaded=frozenset(loaded),
            spread=spread,
        )
        return layout, model_file

    def _spread(
        self, documents: Mapping[str, ArrayMetadata], new_dims: tuple[str, ...]
    ) -> list[str]:
        """Return scalars that differ from file to file."""
        found = []
        for path, document in documents.items():
            if document.ndim == 0 and len(self.dims) == 1:
                known = {m.scanned.digests.get(path) for m in self.members} - {None}
                if len(known) > 1 and path.rpartition("/")[2] not in new_dims:
                    found.append(path)
        return found

    # -- comparisons ------------------------------------------------------------------------

    def _compare(self, layout: Layout, model_file: Member | None) -> dict[str, str]:
        by_header = {
            number: differences(header, layout.model, dims=layout.dims, loaded=layout.loaded)
            for number, header in enumerate(self.headers)
        }
        other = None if model_file is None else model_file.scanned.file.url
        where = other or "the repository"
        digests: dict[str, str] = {}
        if self.record is not None:
            digests = dict(self.record.digests)
        elif model_file is not None:
            digests = {
                path: digest.hex()
                for path, digest in model_file.scanned.digests.items()
                if not layout.own_dims(path) and not layout.added_dims(path)
            }
        for member in self.members:
            # Parsers leave coordinates without values out, so nothing is compared then.
            dim = _empty_dim(self.headers[member.scanned.header], layout.dims)
            if dim is not None:
                member.row.add_note(f"it has no steps along {dim}")
                member.is_empty = True
                continue
            for item in by_header[member.scanned.header]:
                if item.is_fatal:
                    member.row.refuse(item.what, array=item.array, other=where)
                else:
                    named = item.what if item.array is None else f"{item.array}: {item.what}"
                    member.row.add_note(named)
            for path, digest in digests.items():
                own = member.scanned.digests.get(path)
                if own is not None and own.hex() != digest:
                    member.row.refuse(
                        "its values differ, and the array does not have the dimension "
                        f"{' or '.join(layout.dims)}",
                        array=path,
                        other=where,
                    )
        return digests

    # -- places -----------------------------------------------------------------------------

    def _place(self, layout: Layout) -> None:
        number = 0 if self.record is None else len(self.record.files)
        for member in self.members:
            if member.row.status == REFUSED or member.is_empty:
                continue
            try:
                member.placed = self._placed(layout, member, number)
            except IcechunkError as error:
                member.row.refuse(error.message)
                continue
            number += 1

    def _placed(self, layout: Layout, member: Member, number: int) -> Placed:
        scanned = member.scanned
        named = {} if self.template is None else self.template.keys(scanned.file.url)
        documents = {
            path: metadata_of(text, path) for path, text in self.headers[scanned.header].arrays
        }
        first: list[Any] = []
        last: list[Any] = []
        lengths: list[int] = []
        for dim in layout.dims:
            length = 1
            for document in documents.values():
                if dim in (document.dimension_names or ()):
                    length = document.shape[(document.dimension_names or ()).index(dim)]
                    break
            lengths.append(length)
            if dim in named:
                keys = (named[dim], named[dim])
            else:
                keys = self._keys_of(dim, documents, member) or (number, number)
            first.append(keys[0])
            last.append(keys[1])
        return Placed(
            file=scanned.file, first=tuple(first), last=tuple(last), lengths=tuple(lengths)
        )

    def _keys_of(
        self, dim: str, documents: Mapping[str, ArrayMetadata], member: Member
    ) -> tuple[Any, Any] | None:
        """Return the first and last value of a coordinate of a file; None where it has none."""
        for path, document in documents.items():
            if path.rpartition("/")[2] != dim:
                continue
            if document.dimension_names == (dim,) and path in member.scanned.values:
                return key_range(member.scanned.values[path], document, dim)
            if document.ndim == 0 and path in member.scanned.digests:
                constants = self.pieces[member.piece].constants
                values = constants[member.scanned.digests[path]].reshape(1)
                return key_range(values, document, dim)
        return None

    def _refresh(self, by_url: Mapping[str, Placed]) -> None:
        """Give changed files the places that they had."""
        for member in self.members:
            before = by_url.get(member.scanned.file.url)
            if before is None or member.row.status == REFUSED:
                continue
            member.is_changed = True
            placed = member.placed
            if placed is None or (placed.first, placed.last, placed.lengths) != (
                before.first,
                before.last,
                before.lengths,
            ):
                member.row.refuse(
                    "the file has changed, and covers other coordinates than before; write all "
                    "files to another group, or delete this one and build it again"
                )
                continue
            member.row.status = REFRESHED
            # The record gets its new size, tag and time.
            before.file = placed.file

    # -- the chunk grid ---------------------------------------------------------------------

    def _splits(self, layout: Layout, members: Sequence[Member]) -> dict[str, int]:
        """Return arrays whose chunks are cut along their first axis, with the length to cut to."""
        splits: dict[str, int] = {}
        for path, document in layout.documents.items():
            if layout.is_stored(path) or not can_split(document.raw, layout.dims):
                continue
            if self.record is not None:
                splits[path] = self.record.splits.get(path, _chunks_of(document.raw)[0])
                continue
            axis = layout.dims.index((document.dimension_names or ("",))[0])
            sizes = set()
            lengths = set()
            for member in members:
                found = dict(self.headers[member.scanned.header].arrays).get(path)
                if found is not None and member.placed is not None:
                    sizes.add(_chunks_of(json.loads(found))[0])
                    lengths.add(member.placed.lengths[axis])
            whole = {n for n in lengths if n % max(sizes, default=1) == 0}
            if len(sizes) > 1 or len(lengths - whole) > 1:
                splits[path] = math.gcd(*sizes, *lengths)
        return splits

    def _refuse_misaligned(
        self,
        layout: Layout,
        files: Sequence[Placed],
        members: Sequence[Member],
        splits: Mapping[str, int],
    ) -> bool:
        """Refuse files that end within a chunk and are not the last; whether there were any."""
        of_placed = {id(member.placed): member for member in members}
        is_found = False
        for path, size in splits.items():
            for member in members:
                own = dict(self.headers[member.scanned.header].arrays)[path]
                [found, *_] = _chunks_of(json.loads(own))
                if found % size:
                    is_found = True
                    member.row.refuse(
                        f"its chunks of {found} steps cannot be cut to those of {size} that the "
                        "array has",
                        array=path,
                    )
        for path, document in layout.documents.items():
            if layout.is_stored(path):
                continue
            chunks = _chunks_of(document.raw)
            for axis, dim in enumerate(document.dimension_names or ()):
                if dim not in layout.dims:
                    continue
                size = splits.get(path, chunks[axis]) if axis == 0 else chunks[axis]
                number = layout.dims.index(dim)
                end = max((p.starts[number] for p in files), default=0)
                for placed in files:
                    length = placed.lengths[number]
                    if placed.starts[number] == end or length % size == 0:
                        continue
                    text = (
                        f"has {length} steps along {dim}, which are no whole chunks of {size}: "
                        "only the last file of a Zarr array may end within a chunk"
                    )
                    after = [p for p in files if p.starts[number] > placed.starts[number]]
                    wrong = [placed] if not placed.is_old else after
                    for one in wrong:
                        member = of_placed.get(id(one))
                        if member is None:
                            continue
                        is_found = True
                        if one is placed:
                            member.row.refuse(text, array=path)
                        else:
                            member.row.refuse(
                                f"follows a file that {text}", array=path, other=placed.file.url
                            )
        return is_found


def _empty_dim(header: Header, dims: tuple[str, ...]) -> str | None:
    """Return a concatenated dimension along which files of this header have no elements."""
    for path, text in header.arrays:
        document = metadata_of(text, path)
        for dim, size in zip(document.dimension_names or (), document.shape, strict=False):
            if dim in dims and size == 0:
                return dim
    return None


def _chunks_of(document: Mapping[str, Any]) -> list[int]:
    chunks: list[int] = document["chunk_grid"]["configuration"]["chunk_shape"]
    return chunks


def new_record(decided: Decided) -> Record:
    """Return the record of the group after the commit."""
    layout = decided.layout
    return Record(
        dims=layout.dims,
        new_dims=layout.new_dims,
        model=replace(layout.model, volatile={}),
        loaded=tuple(sorted(layout.loaded)),
        spread=tuple(sorted(layout.spread)),
        digests=decided.digests,
        splits=dict(decided.splits),
        files=decided.files,
    )
