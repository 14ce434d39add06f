"""Parses the options of a call, and checks that the call takes them.

Long because of the advice about options of other table formats.

Rules of this file
------------------
1. No option is ignored silently. An unknown one raises an error that names the nearest known one;
   only options that Spark itself adds for tables and views are ignored (:data:`SPARK_OPTIONS`).
2. An option exists if and only if a field of `ReadRequest` or `WriteRequest` declares it.
3. Case, ``-`` and ``_`` in names are ignored, since Spark passes names in lower case. A dot may be
   written as ``_``, as in Python keywords.
4. Options that exclude one another, and options that do not apply to the call, the ``layout`` or
   the metadata table, also raise errors.
5. Values of ``storage.*`` options, which may be credentials, never appear in a message or ``repr``.
6. Only the standard library and the errors of this package are imported, since this module runs in
   Spark's planner.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from icechunk_format.errors import InvalidInputError
from icechunk_format.names import nearest
from icechunk_format.options.declare import (
    WRITING,
    Call,
    Option,
    declared_options,
    fold_name,
    is_snapshot_id,
)
from icechunk_format.options.path import refuse_catalog_table, require_path, split_path
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.values import listed, refused
from icechunk_format.options.write import WriteRequest

OPTIONS: Final = declared_options(ReadRequest, WriteRequest)

#: Options that Spark itself adds to those of tables, views and streams (folded).
SPARK_OPTIONS: Final = frozenset(
    {
        *("owner", "location", "provider", "comment", "collation", "external"),
        *("ismanagedlocation", "tabletype", "paths", "checkpointlocation", "queryname"),
        "serialization.format",
    }
)

# When Spark creates a table, it repeats the options of CREATE TABLE under "option.".
_SPARK_PREFIXES: Final = ("option.",)

# Names that need the prefix "storage.", for the advice to users who omit it.
_STORAGE_WORDS: Final = frozenset(
    {
        *("key", "secret", "token", "anon", "region", "endpoint", "endpointurl", "profile"),
        *("accesskeyid", "secretaccesskey", "sessiontoken", "awsaccesskeyid"),
        *("awssecretaccesskey", "awssessiontoken", "awsregion", "accountname", "accountkey"),
        "skipsignature",
    }
)

# Options of other table formats and of earlier releases, with advice on what to use instead.
_ELSEWHERE: Final = {
    "pushdown": (
        "where",
        "Spark returns wrong rows for a DataFrame with pushed filters that is used twice; option"
        " 'where' applies a condition while it reads",
    ),
    **dict.fromkeys(
        ("readChangeFeed", "readChangeData", "startingVersion", "startingTimestamp"),
        (
            "changesSince",
            "option 'changesSince' reads the rows that changed since a tag, a branch or a snapshot;"
            " a stream takes option 'startingFrom'",
        ),
    ),
    **dict.fromkeys(
        ("start-snapshot-id", "start-timestamp"),
        (
            "changesSince",
            "option 'changesSince' reads the rows that changed since a snapshot, a tag or a branch",
        ),
    ),
    **dict.fromkeys(
        ("ignoreDeletes", "ignoreChanges", "skipChangeCommits", "streaming-skip-delete-snapshots"),
        (
            "changeColumns",
            "changes never stop a stream: rewritten rows are returned again, and deleted rows only"
            " with option 'changeColumns'; leave it out",
        ),
    ),
    **dict.fromkeys(
        ("maxFilesPerTrigger", "maxBytesPerTrigger"),
        (
            "maxChunksPerTrigger",
            "option 'maxChunksPerTrigger' limits a batch by changed chunks, and"
            " 'maxSnapshotsPerTrigger' by snapshots",
        ),
    ),
    **dict.fromkeys(
        ("optimizeWrite", "autoCompact", "target-file-size-bytes", "maxRecordsPerFile"),
        (
            "chunks",
            "the chunks of the arrays are the files: option 'chunks' sets their shape when a write"
            " creates them, and icechunk_spark.rechunk changes it",
        ),
    ),
    **dict.fromkeys(
        ("stream-from-timestamp", "startingOffsets"),
        (
            "startingFrom",
            "option 'startingFrom' specifies where a stream begins: a timestamp, a tag or a"
            " snapshot",
        ),
    ),
    **dict.fromkeys(
        ("compression", "codec", "compressionCodec", "compressor", "compressors"),
        (
            "encoding",
            "reads find it in the arrays, and option 'encoding' of a write sets it, as in"
            ' {"t2m": {"compressors": [{"name": "zstd", "configuration": {"level": 5}}]}}',
        ),
    ),
    **dict.fromkeys(
        ("endingVersion", "endingTimestamp", "end-snapshot-id"),
        ("snapshot", "option 'snapshot', 'tag' or 'asOf' selects the snapshot at which it ends"),
    ),
    "dimensions": ("dims", "option 'dims' of a write names the dimensions, as in 'time,lat,lon'"),
    "overwriteSchema": (
        None,
        "mode 'overwrite' replaces the arrays of the group, with their types; leave it out",
    ),
    "partitionOverwriteMode": (
        "replaceWhere",
        "option 'replaceWhere' of mode 'overwrite' replaces one region, and mode 'append' the cells"
        " that have rows",
    ),
}

# Other options of file formats and tables, for errors that show them as users type them.
_OF_OTHER_FORMATS: Final = (*("inferSchema", "pathGlobFilter", "recursiveFileLookup"),)

# Advice about options that a call does not take.
_ADVICE: Final[dict[Call, str]] = {
    "read": "leave it out, or read changes up to a snapshot with option 'changesSince'",
    "readStream": "a stream follows a branch, from where option 'startingFrom' specifies",
    "write": "leave it out, and call icechunk_spark.maintenance.rewrite_manifests after the write",
    "writeStream": "leave it out, since Spark numbers the batches of a stream",
    "mirror": "a copy has the cells of the newest snapshot of the argument branch; older copied"
    " snapshots are read with icechunk_spark.mirrored",
    "mirrored": "a copy has the cells that mirror selected",
    "virtualize": "arrays are as the files have them",
}
_MOST_SHOWN: Final = 20
# The option of sessions that takes settings from Hadoop's, without its prefix (folded).
_FROM_SPARK: Final = "fromspark"

EXCLUSIVE: Final = (("branch", "tag", "snapshot"), ("asOf", "tag"), ("asOf", "snapshot"))


def parse_read_options(options: Mapping[str, Any], *calls: Call) -> ReadRequest:
    """Parse and check the options of one read.

    Raises InvalidInputError if an option is unknown, invalid or given twice, excludes another one,
    or does not apply to the call, the layout or the metadata table.

    Parameters
    ----------
    options
        Names in any spelling, values as Spark passes them, including the path.
    calls
        The call that takes the options, by default ``read``; several if it is not yet known.
    """
    calls = calls or ("read",)
    refuse_catalog_table(options)
    given = collect_options(options, *calls)
    _check_exclusive(given)
    path, table = split_path(require_path(given, options))
    if table is not None and "table" not in _known_names(calls):
        raise InvalidInputError(
            f"the path names the metadata table '{table}': give the repository's, {path!r}",
            option="path",
        )
    if table is not None and given.get("table", table) != table:
        raise InvalidInputError(
            f"the path names the metadata table '{table}', but option 'table' names"
            f" '{given['table']}': give one of the two",
            option="table",
        )
    read = {item.name for item in fields(ReadRequest)}
    values = {name: value for name, value in by_attribute(given).items() if name in read}
    request = ReadRequest(**values | {"path": path, "table": table or given.get("table")})
    if request.table is None:
        check_layout(given, request.layout)
        if calls == ("read",) and "changesSince" not in given:
            _refuse_without_changes(given)
    else:
        _check_table(given, request.table)
    return request


def collect_options(options: Mapping[str, Any], *calls: Call) -> dict[str, Any]:
    """Return the given options by documented name, parsed; families become dictionaries.

    Raises InvalidInputError if an option is unknown, invalid or given twice, or does not apply to
    any of `calls`.
    """
    given: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for spelling, string in options.items():
        folded = fold_name(spelling)
        if folded in SPARK_OPTIONS or spelling.startswith(("__", *_SPARK_PREFIXES)):
            continue
        option, suffix = _find(spelling, calls)
        if option.name == "snapshot" and folded == "versionasof" and not is_snapshot_id(string):
            if str(string).isdecimal():
                raise refused(
                    _as_typed(spelling),
                    f"must be the id of a snapshot or a tag, but is {string}: snapshots have no"
                    " numbers; the metadata table 'history' lists their ids, and option 'tag' takes"
                    " a tag that is a number",
                    found=string,
                )
            option = _BY_FOLDED_NAME["tag"]
        if not set(calls) & set(option.calls):
            raise meaningless(option, calls[0])
        if option.is_prefix and fold_name(suffix) == _FROM_SPARK:
            if str(string).strip().lower() != "false":
                raise _without_settings(spelling)
            continue
        if option.is_prefix:
            family = given.setdefault(option.name, {})
            if suffix in family:
                raise InvalidInputError(
                    f"option '{option.name[:-1]}{suffix}' is given in two spellings, one of them"
                    f" '{spelling}': give one of them",
                    option=spelling,
                )
            family[suffix] = string
            continue
        if option.name in given:
            raise InvalidInputError(
                f"options '{spelled[option.name]}' and '{_as_typed(spelling)}' are the same option"
                f" '{option.name}': give one of them",
                option=option.name,
            )
        spelled[option.name] = _as_typed(spelling)
        given[option.name] = option.parse(option.name, string)
    return given


def _without_settings(spelling: str) -> InvalidInputError:
    return refused(
        spelling,
        "is for functions and readers in Python, in registered classic sessions: SQL and the"
        " command line cannot read Hadoop's settings. Set storage.key, storage.secret and"
        " storage.region, or use the environment",
    )


def _as_typed(spelling: str) -> str:
    """Return the documented spelling of a name that Spark may have converted to lower case."""
    return _CASED.get(spelling, spelling)


def meaningless(option: Option, call: Call, function: str = "") -> InvalidInputError:
    """Return the error for an option that a call, or a function with its options, does not take."""
    name = function or call
    is_near = (call in WRITING) == bool(set(option.calls) & set(WRITING))
    hints = [f"it is for {listed(option.calls)}"]
    names = [name for name in _known_names([call]) if name != "path"]
    if is_near and call in _ADVICE:
        hints.append(_ADVICE[call])
    elif len(names) <= _MOST_SHOWN:
        hints.append(f"{name} takes {listed(names)}")
    return refused(option.name, f"does not apply to {name}: {'; '.join(hints)}", call=name)


def _known_names(calls: Sequence[Call]) -> list[str]:
    return [option.name for option in OPTIONS if set(calls) & set(option.calls)]


def option_named(spelling: str) -> tuple[Option, str] | None:
    """Return the option that `spelling` names, and the rest after the prefix of a family.

    Raises InvalidInputError with advice for names of other table formats, and for settings of the
    storage without their prefix.
    """
    folded = fold_name(spelling)
    exact = _BY_FOLDED_NAME.get(folded.replace(".", ""))
    if exact is not None:
        return exact, ""
    written = re.sub("[-_]", ".", spelling.strip().lower())
    for option in OPTIONS:
        if option.is_prefix and written.startswith(option.name[:-1]):
            suffix = spelling.strip()[len(option.name) - 1 :].lower()
            if suffix:
                return option, suffix
    if folded in _FOLDED_ELSEWHERE:
        near, advice = _FOLDED_ELSEWHERE[folded]
        raise refused(_as_typed(spelling), f"does not exist: {advice}", nearest=near)
    if folded in _STORAGE_WORDS or folded.startswith(("fs.s3a.", "fs.gs.", "fs.azure.")):
        word = folded.rpartition(".")[2]
        raise InvalidInputError(
            f"unknown option '{spelling}': settings of the storage start with 'storage.', such as"
            f" 'storage.{word if word in _STORAGE_WORDS else 'key'}'; see storage.* among the"
            " options",
            option=spelling,
            nearest="storage.*",
        )
    return None


def _find(spelling: str, calls: Sequence[Call]) -> tuple[Option, str]:
    found = option_named(spelling)
    if found is not None:
        return found
    folded = fold_name(spelling)
    names = _known_names(calls)
    known = [name for option in OPTIONS if option.name in names for name in option.spellings]
    by_folded = {fold_name(name): name for name in known}
    near = nearest(folded, by_folded)
    hint = f": did you mean '{by_folded[near]}'? Known" if near else "; known"
    raise InvalidInputError(
        f"unknown option '{_as_typed(spelling)}'{hint} options are {', '.join(names)}",
        option=_as_typed(spelling),
        nearest=by_folded[near] if near else None,
    )


def by_attribute(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given options by the fields of `ReadRequest` or `WriteRequest`."""
    return {item.attribute: given[item.name] for item in OPTIONS if item.name in given}


def _check_exclusive(given: Mapping[str, Any]) -> None:
    for names in EXCLUSIVE:
        both = [name for name in names if name in given]
        if len(both) > 1:
            advice = (
                "asOf selects a snapshot on a branch, and a tag or snapshot is already one"
                if "asOf" in both
                else "each of them selects the snapshot to read"
            )
            raise InvalidInputError(
                f"options {listed(both)} exclude one another: {advice}; give only one",
                options=tuple(both),
            )


def check_layout(given: Mapping[str, Any], layout: str) -> None:
    """Raise InvalidInputError for options that do not apply to `layout`."""
    for option in OPTIONS:
        if option.name in given and layout not in option.layouts:
            meant = (
                f"layout {listed(option.layouts, 'or')}"
                if option.layouts
                else f"the metadata table {listed(option.tables, 'or')}"
            )
            problem = f"does not apply to layout={layout}: it is for {meant}"
            raise refused(option.name, problem, layout=layout)


def _refuse_without_changes(given: Mapping[str, Any]) -> None:
    """Raise InvalidInputError for options of changes in a read of all rows."""
    for name in ("changesBy", "changeColumns", "onHistoryChange"):
        if name in given:
            raise refused(
                name,
                "is about changes: give option 'changesSince' as well, with the snapshot since"
                " which rows changed",
            )


def _check_table(given: Mapping[str, Any], table: str) -> None:
    """Raise InvalidInputError for options that do not apply to a metadata table."""
    allowed = [option.name for option in OPTIONS if table in option.tables]
    for option in OPTIONS:
        if option.name in given and option.name not in allowed:
            hint = (
                f"it is for {listed(option.tables, 'or')}"
                if option.tables
                else "filter and select columns of the DataFrame instead"
                if option.name in ("where", "sel", "isel", "variables")
                else "it is about the values of arrays"
            )
            raise refused(
                option.name,
                f"does not apply to the metadata table '{table}': {hint}; this table takes"
                f" {', '.join(allowed)}",
                table=table,
            )


_BY_FOLDED_NAME: Final[dict[str, Option]] = {
    fold_name(name).replace(".", ""): option
    for option in OPTIONS
    if not option.is_prefix
    for name in option.spellings
}
_FOLDED_ELSEWHERE: Final = {fold_name(name): advice for name, advice in _ELSEWHERE.items()}
# Documented spellings of the names that Spark passes in lower case.
_CASED: Final[dict[str, str]] = {
    name.lower(): name
    for name in (
        *_ELSEWHERE,
        *_OF_OTHER_FORMATS,
        *(one for option in OPTIONS for one in option.spellings),
    )
}
