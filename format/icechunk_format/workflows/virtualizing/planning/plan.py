"""Plans which scanned files are accepted, and the span of each.

Long because one class runs all steps of the algorithm on the same headers and keys.

Algorithm
---------
1. The model is the header in the record, or else the most frequent header.
2. The headers of files are compared with the model, and values common to all files by digests.
3. File names, coordinates or the order of the list give keys along the concatenated dimensions;
   keys and lengths determine the span of each file.
4. Files that do not fit the chunk grid are refused, and the others are arranged again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from icechunk_format.errors import IcechunkError, InvalidInputError
from icechunk_format.names import nearest, shown
from icechunk_format.workflows.virtualizing.planning.arrange import (
    Along,
    FileSpan,
    arrange,
    key_range,
)
from icechunk_format.workflows.virtualizing.planning.chunk_grid import (
    chunk_splits,
    refuse_misaligned,
    refuse_uncut,
)
from icechunk_format.workflows.virtualizing.planning.compare import differences, kind_of
from icechunk_format.workflows.virtualizing.planning.copies import Copying
from icechunk_format.workflows.virtualizing.planning.members import ArchivePlan, Member
from icechunk_format.workflows.virtualizing.planning.record import Layout, Record
from icechunk_format.workflows.virtualizing.planning.times import (
    converted_times,
    is_coded_alike,
    widened,
)
from icechunk_format.workflows.virtualizing.report import KNOWN, REFRESHED, REFUSED, Row
from icechunk_format.workflows.virtualizing.scanning.headers import (
    Header,
    bounds_of_scalars,
    is_varying,
    loaded_paths,
)
from icechunk_format.workflows.virtualizing.scanning.scan import ScannedFile, digest_of
from icechunk_format.zarr.zarr_json import ArrayMetadata

if TYPE_CHECKING:
    from icechunk_format.workflows.virtualizing.planning.template import Template

_COPY_IT: Final = "copy such arrays with copy='mismatching'"


@dataclass(slots=True, kw_only=True)
class ArchivePlanner:
    """Plans the files of one call; ``plan`` is called once."""

    files: Sequence[ScannedFile]
    dims: tuple[str, ...]
    """The concatenated dimensions, slowest first; empty for a single file."""
    template: Template | None
    loadable: tuple[str, ...] | None
    record: Record | None  # None if the group has no arrays
    copying: Copying | None = None
    members: list[Member] = field(default_factory=list)

    def plan(self) -> ArchivePlan:
        """Return the plan."""
        rows = self._rows()
        layout, model_file = self._layout(len(rows))
        layout = self._compare(self._with_copies(layout), model_file)
        layout = self._set_keys(layout)
        by_url = {} if self.record is None else {s.file.url: s for s in self.record.files}
        self._refresh(by_url)
        while True:
            members = [m for m in self.members if m.row.status != REFUSED and m.span is not None]
            new = [m.span for m in members if m.span is not None and not m.is_changed]
            fresh = {span.file.url for span in new}
            stay = [span for url, span in by_url.items() if url not in fresh]
            found = arrange([*stay, *new], len(layout.dims))
            for span, problem, other in found.refused:
                reason = f"{problem} along {', '.join(layout.dims)}"
                if self.template is None:
                    reason += "; if its coordinate is wrong, give its position by template="
                assert span.row is not None
                span.row.refuse(reason, other=None if other is None else other.file.url)
            splits = {}
            if self.copying is None or self.copying.which == "mismatching":
                is_free = self.copying is None or not self.copying.chunks
                splits = chunk_splits(
                    layout, members, found.files, is_first=self.record is None and is_free
                )
            refuse_uncut(members, splits, copies=self.copying is not None)
            if self.copying is None:
                refuse_misaligned(layout, found.files, splits)
            if all(member.row.status != REFUSED for member in members):
                break
        for span, note in found.notes:
            if span.row is not None:
                span.row.add_note(note)
        placed = {span.file.url: span for span in found.files}
        for member in members:
            member.span = placed[member.scanned.file.url]
        return ArchivePlan(
            layout=replace(layout, splits=splits),
            rows=rows,
            taken=members,
            files=found.files,
            sizes=found.sizes,
            old_starts={url: span.starts for url, span in by_url.items()},
        )

    def check(self, count: int) -> None:
        """Raise InvalidInputError if options do not fit the first of `count` files."""
        self._rows()
        self._with_copies(self._layout(count)[0])

    def _rows(self) -> list[Row]:
        """Return the rows of the report, after adding the readable new files to the members."""
        rows: list[Row] = []
        for scanned in self.files:
            row = Row(file=scanned.file.url)
            rows.append(row)
            if scanned.is_known:
                row.status = KNOWN
            elif scanned.problem is not None:
                row.refuse(scanned.problem, array=scanned.array)
            else:
                self.members.append(Member(row=row, scanned=scanned))
        return rows

    # -- the model --------------------------------------------------------------------------

    def _layout(self, count: int) -> tuple[Layout, Member | None]:
        if self.record is not None:
            layout = self.record.layout
            if self.dims and set(self.dims) != set(layout.dims):
                raise InvalidInputError(
                    f"the group was concatenated along {', '.join(layout.dims) or 'nothing'}, and "
                    f"now along {', '.join(self.dims)}; name the same dimensions",
                    option="concat_dim",
                )
            return layout, None
        full = [
            member
            for member in self.members
            if _empty_dim(member.scanned.header, self.dims) is None
        ]
        full = full or self.members
        if not full:
            return Layout(dims=self.dims), None
        kinds = {header: self._kind(header) for header in self._headers()}
        [(kind, _)] = Counter(kinds[m.scanned.header] for m in full).most_common(1)
        alike = [m.scanned.header for m in full if kinds[m.scanned.header] == kind]
        [(model, _)] = Counter(alike).most_common(1)
        model_file = next(m for m in full if m.scanned.header == model)
        documents = model.documents()
        inside = {dim for d in documents.values() for dim in d.dimension_names or ()}
        if not self.dims and count > 1:
            raise InvalidInputError(
                f"{count:,} files are given without the dimension along which they are "
                f"concatenated; give concat_dim=, one of {', '.join(sorted(map(str, inside)))} or "
                "a new one, or a template=",
                option="concat_dim",
            )
        new_dims = tuple(dim for dim in self.dims if dim not in inside)
        for dim in new_dims:
            like = nearest(dim, map(str, inside - set(self.dims)), cutoff=0.7)
            if like and self.template is None:
                raise InvalidInputError(
                    f"concat_dim={dim!r}: no file has this dimension, and {like!r} is similar; "
                    f"give concat_dim={like!r}, or a new dimension another name",
                    option="concat_dim",
                )
        layout = Layout(
            dims=self.dims,
            new_dims=new_dims,
            model=model,
            loaded=frozenset(loaded_paths(documents, self.loadable) | self._other_times(model)),
            spread=frozenset(self._spread(model, new_dims)),
        )
        return layout, model_file

    def _with_copies(self, layout: Layout) -> Layout:
        """Return the layout with the documents of copied arrays."""
        copying = self.copying
        is_given = copying is not None and bool(copying.chunks or copying.encoding)
        if copying is None or not layout.documents or (self.record and not is_given):
            return layout
        own = {p: d for p, d in layout.documents.items() if p not in layout.stored}
        others = [] if self.record else [header.documents() for header in self._headers()]
        found = {p: [d, *(o[p] for o in others if p in o)] for p, d in own.items()}
        wanted = copying.documents(found, layout.dims)
        for path, document in wanted.items() if self.record else ():
            if document.raw != own[path].raw:
                raise InvalidInputError(
                    f"array {path!r} is stored with other chunks or another encoding than the call "
                    "gives; leave chunks= and encoding= out to append, or change it with "
                    "rechunk",
                    option="chunks" if copying.chunks else "encoding",
                    variable=path,
                )
        return layout.with_documents(wanted)

    def _headers(self) -> set[Header]:
        return {member.scanned.header for member in self.members}

    def _kind(self, header: Header) -> str:
        documents = header.documents()
        scalars = {path for path in header.times() if documents[path].ndim == 0}
        scalars |= bounds_of_scalars(documents)
        stored = loaded_paths(documents, self.loadable) | scalars
        return kind_of(header, dims=self.dims, stored=stored)

    def _other_times(self, model: Header) -> set[str]:
        """Return scalar times to convert, since their units or types differ."""
        return {
            path
            for header in self._headers()
            for path, own in header.times().items()
            if (document := model.times().get(path)) is not None and self.dims
            if own.ndim == document.ndim == 0 and not is_coded_alike(own, document)
        }

    def _spread(self, model: Header, new_dims: tuple[str, ...]) -> list[str]:
        """Return scalars that differ from file to file."""
        found = []
        documents = model.documents()
        bounds = bounds_of_scalars(documents)
        for path, document in documents.items():
            if (document.ndim == 0 or path in bounds) and len(self.dims) == 1:
                known = {self._digest(m, path, model) for m in self.members} - {None}
                if len(known) > 1 and path.rpartition("/")[2] not in new_dims:
                    found.append(path)
        return found

    def _digest(self, member: Member, path: str, model: Header) -> bytes | None:
        """Return the digest of a file's values, converted to the model's units for times."""
        digest = member.scanned.digests.get(path)
        own = member.scanned.header.times().get(path)
        wanted = model.times().get(path)
        values = member.scanned.values.get(path)
        if (
            digest is None
            or values is None
            or own is None
            or wanted is None
            or is_coded_alike(own, wanted)
        ):
            return digest
        try:
            return digest_of(converted_times(values, own, wanted, path))
        except IcechunkError:  # another calendar, or a time that does not fit the model
            return b""

    # -- comparisons ------------------------------------------------------------------------

    def _compare(self, layout: Layout, model_file: Member | None) -> Layout:
        """Refuse files that differ from the model; return the layout with digests of values."""
        by_header = {
            header: differences(header, layout.model, dims=layout.dims, stored=layout.stored)
            for header in self._headers()
        }
        model_name = "the repository" if model_file is None else model_file.scanned.file.url
        digests = layout.digests
        if model_file is not None:
            digests = {
                path: digest.hex()
                for path, digest in model_file.scanned.digests.items()
                if not layout.own_dims(path) and not layout.added_dims(path)
            }
        for member in self.members:
            # Parsers omit coordinates without values, so empty files are not compared.
            dim = _empty_dim(member.scanned.header, layout.dims)
            if dim is not None:
                member.row.add_note(f"it has no steps along {dim}")
                continue
            if self.copying is not None and self.copying.which == "all":
                for path in layout.documents.keys() - layout.stored:
                    member.copy(path, "")
            for path, document in member.scanned.header.documents().items():
                if is_varying(document):
                    units = document.attributes["units"]
                    member.row.add_note(f"{path}: its units {shown(units)} are read as numbers")
            for path, unreferable in member.scanned.unreferable.items():
                if path in layout.stored:
                    continue
                if self.copying is not None:
                    member.copy(path, unreferable.reason)
                else:
                    reason = f"{unreferable.reason}, so that it cannot be referenced; {_COPY_IT}"
                    member.row.refuse(reason, array=path)
            for item in by_header[member.scanned.header]:
                if item.is_copyable and self.copying is not None and item.array is not None:
                    member.copy(item.array, item.what)
                elif item.is_fatal:
                    member.row.refuse(item.what + item.advice, array=item.array, other=model_name)
                else:
                    named = item.what if item.array is None else f"{item.array}: {item.what}"
                    member.row.add_note(named)
            for path, nbytes in member.scanned.uncompared.items():
                if not layout.own_dims(path) and not layout.added_dims(path):
                    member.row.add_note(
                        f"{path}: its {nbytes:,} bytes are too many to compare with other files; "
                        "readers get the values of the first file"
                    )
            for path, digest in digests.items():
                own = self._digest(member, path, layout.model)
                if own is not None and own.hex() != digest:
                    member.row.refuse(
                        "its values differ, and the array does not have the dimension "
                        f"{' or '.join(layout.dims)}",
                        array=path,
                        other=model_name,
                    )
        return replace(layout, digests=digests)

    # -- keys -------------------------------------------------------------------------------

    def _set_keys(self, layout: Layout) -> Layout:
        """Set the keys of files; return the layout, with wider types for times if needed."""
        number = 0 if self.record is None else len(self.record.files)
        wide: dict[str, ArrayMetadata] = {}
        for member in self.members:
            is_empty = _empty_dim(member.scanned.header, layout.dims) is not None
            if member.row.status == REFUSED or is_empty:
                continue
            try:
                member.span = self._span(layout, member, number)
                self._widen(layout, member, wide)
            except IcechunkError as error:
                member.row.refuse(error.message)
                continue
            number += 1
        return layout.with_documents(wide) if wide else layout

    def _widen(self, layout: Layout, member: Member, wide: dict[str, ArrayMetadata]) -> None:
        """Collect arrays that need a wider type for the times of a file."""
        own = member.scanned.header.times()
        for path, wanted in layout.model.times().items():
            if path not in layout.stored or is_coded_alike(own[path], wanted):
                continue
            values = member.scanned.values[path]
            try:
                converted_times(values, own[path], wanted, path)
            except IcechunkError:
                other = widened(wanted)
                if is_coded_alike(other, wanted):
                    raise
                converted_times(values, own[path], other, path)
                wide[path] = widened(layout.documents[path])

    def _span(self, layout: Layout, member: Member, number: int) -> FileSpan:
        scanned = member.scanned
        documents = scanned.header.documents()
        named = {} if self.template is None else self.template.keys(scanned.file.url)
        first: list[Any] = []
        last: list[Any] = []
        for axis, dim in enumerate(layout.dims):
            if dim in named:
                keys = (named[dim], named[dim])
            else:
                keys = _keys_of(dim, documents, scanned) or (number, number)
            old = [] if self.record is None else self.record.files[:1]
            if any(isinstance(f.first[axis], str) != isinstance(keys[0], str) for f in old):
                raise InvalidInputError(
                    f"its key along {dim!r} is {keys[0]!r}, and files of the repository have "
                    f"{old[0].first[axis]!r}; give the template= that was given for these"
                )
            first.append(keys[0])
            last.append(keys[1])
        return FileSpan(
            file=scanned.file,
            row=member.row,
            first=tuple(first),
            last=tuple(last),
            lengths=_lengths(scanned.header, layout.dims),
        )

    def _refresh(self, by_url: dict[str, FileSpan]) -> None:
        """Mark files that changed since the record, and update their states in `by_url`."""
        for member in self.members:
            before, span = by_url.get(member.scanned.file.url), member.span
            if before is None or member.row.status == REFUSED:
                continue
            keys = (before.first, before.last, before.lengths)
            if span is not None and (span.first, span.last, span.lengths) == keys:
                member.is_changed = True
                by_url[span.file.url] = replace(before, file=span.file)
            elif span is None or not _has_grown(span, before):
                member.row.refuse(
                    "the file has changed, and covers other coordinates than before; a file may "
                    "only grow at its end. Write all files to another group with group="
                )
                continue
            member.row.status = REFRESHED


def _keys_of(
    dim: str, documents: Mapping[str, ArrayMetadata], scanned: ScannedFile
) -> tuple[Any, Any] | None:
    """Return the first and last value of a file's coordinate; None if it has no coordinate."""
    for path, document in documents.items():
        is_key = document.dimension_names == (dim,) or document.ndim == 0
        if path.rpartition("/")[2] == dim and is_key and path in scanned.values:
            return key_range(scanned.values[path], document, dim)
    return None


def _has_grown(span: FileSpan, before: FileSpan) -> bool:
    """Return True if a file has the same start as before and is longer along one dimension."""
    now, then = span.lengths, before.lengths
    pairs = [(now.of(g), then.of(g)) for g in {*now.groups, *then.groups}]
    longer = [[a - b for a, b in zip(*pair, strict=True)] for pair in [(now.own, then.own), *pairs]]
    grown = [any(row) for row in zip(*longer, strict=True)]
    return span.first == before.first and min(map(min, longer)) >= 0 and sum(grown) == 1


@lru_cache(maxsize=4096)
def _lengths(header: Header, dims: tuple[str, ...]) -> Along:
    """Return the lengths of concatenated dimensions, with exceptions for other groups."""
    own: dict[str, int] = {}
    groups: dict[str, dict[str, int]] = {}
    for path, document in header.documents().items():
        inside = groups.setdefault(path.rpartition("/")[0], {})
        for dim, size in zip(document.dimension_names or (), document.shape, strict=False):
            if dim in dims and dim is not None:
                own.setdefault(dim, size)
                if inside.setdefault(dim, size) != size or not size:
                    raise InvalidInputError(
                        f"array {path!r} has {size} steps along {dim}, but other arrays have "
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
    """Return a concatenated dimension of length 0 in a header, or None."""
    sizes: dict[str | None, set[int]] = {}
    for document in header.documents().values():
        for dim, size in zip(document.dimension_names or (), document.shape, strict=False):
            sizes.setdefault(dim, set()).add(size)
    return next((dim for dim in dims if sizes.get(dim) == {0}), None)
