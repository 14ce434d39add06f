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

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from icechunk_format.arrays.zarr_json import ArrayMetadata
from icechunk_format.errors import IcechunkError, InvalidInputError
from icechunk_format.workflows.virtualizing.planning.arrange import (
    Along,
    Placed,
    arrange,
    key_range,
)
from icechunk_format.workflows.virtualizing.planning.chunk_grid import (
    chunk_splits,
    refuse_misaligned,
    refuse_uncut,
)
from icechunk_format.workflows.virtualizing.planning.compare import differences, kind_of
from icechunk_format.workflows.virtualizing.planning.members import Decided, Layout, Member
from icechunk_format.workflows.virtualizing.planning.record import Record
from icechunk_format.workflows.virtualizing.planning.times import (
    converted_times,
    is_coded_alike,
    widened,
)
from icechunk_format.workflows.virtualizing.report import KNOWN, REFRESHED, REFUSED, Row
from icechunk_format.workflows.virtualizing.scanning.headers import (
    Header,
    loaded_paths,
)
from icechunk_format.workflows.virtualizing.scanning.scan import ScannedPiece
from icechunk_format.workflows.virtualizing.scanning.values import digest_of

if TYPE_CHECKING:
    from icechunk_format.workflows.virtualizing.planning.template import Template


@dataclass(slots=True, kw_only=True)
class Decider:
    """Decides which files are taken.

    Parameters
    ----------
    pieces, headers
        What the scan has found; see ``merged``.
    dims
        The concatenated dimensions, slowest first; none for a single file.
    record
        What the group was made of, where it has arrays.
    """

    pieces: Sequence[ScannedPiece]
    headers: Sequence[Header]
    dims: tuple[str, ...]
    template: Template | None
    loadable: tuple[str, ...] | None
    record: Record | None
    members: list[Member] = field(default_factory=list)

    def decide(self) -> Decided:
        """Decide it.

        Raises
        ------
        InvalidInputError
            No file can be used at all, or the options do not fit the record.
        """
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
        layout = self._place(layout)
        old = [] if self.record is None else self.record.files
        by_url = {placed.file.url: placed for placed in old}
        old_starts = {url: placed.starts for url, placed in by_url.items()}
        self._refresh(by_url)
        while True:
            members = [m for m in self.members if m.row.status != REFUSED and m.placed is not None]
            fresh = [m.placed for m in members if not m.is_changed and m.placed is not None]
            grown = {m.placed.file.url for m in members if m.placed is not None and m.has_grown}
            stay = [placed for placed in old if placed.file.url not in grown]
            found = arrange([*stay, *fresh], len(layout.dims))
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
            splits = chunk_splits(layout, members, self.headers, self.record)
            is_wrong = refuse_uncut(members, self.headers, splits)
            is_wrong |= refuse_misaligned(layout, found.files, members, splits)
            if found.refused or is_wrong:
                continue
            break
        for placed, note in found.notes:
            noted = of_placed.get(id(placed))
            if noted is not None:
                noted.row.add_note(note)
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
            layout = Layout(
                dims=given.dims,
                new_dims=given.new_dims,
                model=given.model,
                loaded=frozenset(given.loaded),
                spread=frozenset(given.spread),
            )
            return layout, None
        full = [
            member
            for member in self.members
            if _empty_dim(self.headers[member.scanned.header], self.dims) is None
        ]
        full = full or self.members
        if not full:
            return Layout(dims=self.dims), None
        kinds = [self._kind(header) for header in self.headers]
        [(kind, _)] = Counter(kinds[m.scanned.header] for m in full).most_common(1)
        alike = [m.scanned.header for m in full if kinds[m.scanned.header] == kind]
        [(number, _)] = Counter(alike).most_common(1)
        model_file = next(m for m in full if m.scanned.header == number)
        model = self.headers[number]
        documents = model.documents()
        inside = {dim for d in documents.values() for dim in d.dimension_names or ()}
        if not self.dims and len(rows) > 1:
            raise InvalidInputError(
                f"{len(rows):,} files are named, and no dimension along which they follow one "
                f"another; give concat_dim=, one of {', '.join(sorted(map(str, inside)))} or a new "
                "one, or a template=",
                option="concat_dim",
            )
        new_dims = tuple(dim for dim in self.dims if dim not in inside)
        for dim in new_dims:
            like = get_close_matches(dim, map(str, inside - set(self.dims)), n=1, cutoff=0.7)
            if like and self.template is None:
                raise InvalidInputError(
                    f"concat_dim={dim!r}: no file has this dimension, and {like[0]!r} is written "
                    f"much like it; give concat_dim={like[0]!r}, or a new dimension another name",
                    option="concat_dim",
                )
        loaded = loaded_paths(documents, self.loadable) | self._other_times(model)
        layout = Layout(
            dims=self.dims,
            new_dims=new_dims,
            model=model,
            loaded=frozenset(loaded),
            spread=frozenset(self._spread(model, new_dims)),
        )
        return layout, model_file

    def _kind(self, header: Header) -> str:
        documents = header.documents()
        scalars = {path for path in header.times() if documents[path].ndim == 0}
        stored = loaded_paths(documents, self.loadable) | scalars
        return kind_of(header, dims=self.dims, stored=stored)

    def _other_times(self, model: Header) -> set[str]:
        """Return scalar times that files store in several ways, so that they are converted."""
        found = set()
        for header in self.headers:
            times = header.times()
            for path, document in model.times().items():
                own = times.get(path)
                if own is not None and own.ndim == document.ndim == 0 and self.dims:
                    found |= set() if is_coded_alike(own, document) else {path}
        return found

    def _spread(self, model: Header, new_dims: tuple[str, ...]) -> list[str]:
        """Return scalars that differ from file to file."""
        found = []
        for path, document in model.documents().items():
            if document.ndim == 0 and len(self.dims) == 1:
                known = {self._digest(m, path, model) for m in self.members} - {None}
                if len(known) > 1 and path.rpartition("/")[2] not in new_dims:
                    found.append(path)
        return found

    def _digest(self, member: Member, path: str, model: Header) -> bytes | None:
        """Return the digest of values of a file as the model stores them: of instants for times."""
        digest = member.scanned.digests.get(path)
        own = self.headers[member.scanned.header].times().get(path)
        wanted = model.times().get(path)
        values = None if digest is None else self.pieces[member.piece].constants.get(digest)
        if values is None or own is None or wanted is None or is_coded_alike(own, wanted):
            return digest
        try:
            return digest_of(converted_times(values, own, wanted, path))
        except IcechunkError:  # another calendar, or an instant that the model cannot hold
            return b""

    # -- comparisons ------------------------------------------------------------------------

    def _compare(self, layout: Layout, model_file: Member | None) -> dict[str, str]:
        by_header = {
            number: differences(header, layout.model, dims=layout.dims, stored=layout.stored)
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
            for path, nbytes in member.scanned.uncompared.items():
                if not layout.own_dims(path) and not layout.added_dims(path):
                    member.row.add_note(
                        f"{path}: its {nbytes:,} bytes were not compared with those of other "
                        "files, being too many; readers get those of the first file"
                    )
            for path, digest in digests.items():
                own = self._digest(member, path, layout.model)
                if own is not None and own.hex() != digest:
                    member.row.refuse(
                        "its values differ, and the array does not have the dimension "
                        f"{' or '.join(layout.dims)}",
                        array=path,
                        other=where,
                    )
        return digests

    # -- places -----------------------------------------------------------------------------

    def _place(self, layout: Layout) -> Layout:
        """Give files their keys; return the layout with types that hold all converted times."""
        number = 0 if self.record is None else len(self.record.files)
        wide: dict[str, ArrayMetadata] = {}
        for member in self.members:
            if member.row.status == REFUSED or member.is_empty:
                continue
            header = self.headers[member.scanned.header]
            try:
                member.placed = self._placed(layout, member, header, number)
                self._widen(layout, member, header, wide)
            except IcechunkError as error:
                member.row.refuse(error.message)
                continue
            number += 1
        return layout.with_documents(wide) if wide else layout

    def _widen(
        self, layout: Layout, member: Member, header: Header, wide: dict[str, ArrayMetadata]
    ) -> None:
        """Note which arrays need a wider type for the times of a file."""
        own = header.times()
        for path, wanted in layout.model.times().items():
            if path not in layout.stored or is_coded_alike(own[path], wanted):
                continue
            values = member.values_of(path, self.pieces)
            try:
                converted_times(values, own[path], wanted, path)
            except IcechunkError:
                other = widened(wanted)
                if is_coded_alike(other, wanted):
                    raise
                converted_times(values, own[path], other, path)
                wide[path] = widened(layout.documents[path])

    def _placed(
        self,
        layout: Layout,
        member: Member,
        header: Header,
        number: int,
    ) -> Placed:
        scanned, documents = member.scanned, header.documents()
        named = {} if self.template is None else self.template.keys(scanned.file.url)
        first: list[Any] = []
        last: list[Any] = []
        for axis, dim in enumerate(layout.dims):
            if dim in named:
                keys = (named[dim], named[dim])
            else:
                keys = self._keys_of(dim, documents, member) or (number, number)
            old = [] if self.record is None else self.record.files[:1]
            if any(isinstance(f.first[axis], str) != isinstance(keys[0], str) for f in old):
                raise InvalidInputError(
                    f"its place along {dim!r} is {keys[0]!r}, and files of the repository have "
                    f"{old[0].first[axis]!r}; give the template= that was given for these"
                )
            first.append(keys[0])
            last.append(keys[1])
        return Placed(
            file=scanned.file,
            first=tuple(first),
            last=tuple(last),
            lengths=_lengths(header, layout.dims),
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
            placed = member.placed
            where = (before.first, before.last, before.lengths)
            if placed is not None and (placed.first, placed.last, placed.lengths) == where:
                member.is_changed = True
                # The record gets its new size, tag and time.
                before.file = placed.file
            elif placed is not None and _has_grown(placed, before):
                member.has_grown = True
            else:
                member.row.refuse(
                    "the file has changed, and covers other coordinates than before; a file may "
                    "only grow at its end. Write all files to another group with group="
                )
                continue
            member.row.status = REFRESHED


def _has_grown(placed: Placed, before: Placed) -> bool:
    """Whether a file begins as before, and is longer along one dimension."""
    now, then = placed.lengths, before.lengths
    pairs = [(now.of(g), then.of(g)) for g in {*now.groups, *then.groups}]
    longer = [[a - b for a, b in zip(*pair, strict=True)] for pair in [(now.own, then.own), *pairs]]
    grown = [any(row) for row in zip(*longer, strict=True)]
    return placed.first == before.first and min(map(min, longer)) >= 0 and sum(grown) == 1


@lru_cache(maxsize=4096)
def _lengths(header: Header, dims: tuple[str, ...]) -> Along:
    """Return the lengths of concatenated dimensions: of the first group that has them, and others.

    Raises
    ------
    InvalidInputError
        A dimension has two lengths in one group, or no steps in one of them.
    """
    own: dict[str, int] = {}
    groups: dict[str, dict[str, int]] = {}
    for path, document in header.documents().items():
        inside = groups.setdefault(path.rpartition("/")[0], {})
        for dim, size in zip(document.dimension_names or (), document.shape, strict=False):
            if dim in dims and dim is not None:
                own.setdefault(dim, size)
                if inside.setdefault(dim, size) != size or not size:
                    raise InvalidInputError(
                        f"array {path!r} has {size} steps along {dim}, and others have "
                        f"{max(inside[dim], own[dim])}"
                    )
    found = {
        group: tuple(inside.get(dim, own.get(dim, 1)) for dim in dims)
        for group, inside in groups.items()
    }
    first = tuple(own.get(dim, 1) for dim in dims)
    return Along(first, {group: n for group, n in found.items() if n != first})


@lru_cache(maxsize=4096)
def _empty_dim(header: Header, dims: tuple[str, ...]) -> str | None:
    """Return a concatenated dimension along which files of this header have no elements."""
    sizes: dict[str | None, set[int]] = {}
    for document in header.documents().values():
        for dim, size in zip(document.dimension_names or (), document.shape, strict=False):
            sizes.setdefault(dim, set()).add(size)
    return next((dim for dim in dims if sizes.get(dim) == {0}), None)


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
