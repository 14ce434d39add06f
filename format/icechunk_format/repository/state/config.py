"""Reads and changes the settings in ``repo``, or in ``config.yaml`` of spec version 1.

Changes are applied to the stored configuration, not to one that was read earlier, so concurrent
changes of different settings are all kept.

Specification: "Repo Info File"; version 1: ``config.yaml``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from icechunk_format.encoding.config.changes import changed_tree
from icechunk_format.encoding.config.config import (
    RepositoryConfig,
    decode_flexbuffer_config,
    decode_yaml_config,
    parse_config,
)
from icechunk_format.encoding.config.yaml_text import encode_yaml_config
from icechunk_format.encoding.envelope import SPEC_V1
from icechunk_format.encoding.object_keys import CONFIG_YAML, overwritten_key
from icechunk_format.encoding.repo_info.file import RepoInfo
from icechunk_format.encoding.values.flexbuffers import encode_flexbuffer
from icechunk_format.errors import UnsupportedError
from icechunk_format.repository.files.optional_objects import fetch_if_there
from icechunk_format.repository.state import transitions as repo_changes
from icechunk_format.repository.state.publish import (
    attempts,
    new_backup_name,
    now_in_microseconds,
    put_if,
    race_lost,
    update_repo,
)
from icechunk_format.repository.state.repo_file import config_in
from icechunk_format.repository.state.transitions import Transition
from icechunk_format.storage.protocol import (
    Condition,
    CreateOnly,
    ReplaceIfUnchanged,
    Storage,
    check_writable,
)


def change_setting(
    storage: Storage,
    spec_version: int,
    what: str,
    change: Callable[[RepoInfo], Transition],
    *,
    even_if_read_only: bool = False,
) -> None:
    """Change a setting that spec version 1 does not support; ``what`` is its name in the error."""
    if spec_version == SPEC_V1:
        raise UnsupportedError(
            f"{storage.root_url} has spec version 1, which has no {what}; upgrade the "
            "repository to version 2 first",
            spec_version=SPEC_V1,
        )
    update_repo(storage, change, even_if_read_only=even_if_read_only)


def change_config(
    storage: Storage, changes: Mapping[str, Any], *, spec_version: int
) -> RepositoryConfig:
    """Apply changes to the stored configuration; see ``Repository.update_config``."""
    check_writable(storage)
    if spec_version == SPEC_V1:
        return _change_yaml(storage, changes)

    def change(info: RepoInfo) -> Transition | None:
        old = {} if info.config is None else decode_flexbuffer_config(info.config).raw
        new = changed_tree(old, changes)
        return None if new == old else repo_changes.set_config(info, encode_flexbuffer(new))

    return config_in(update_repo(storage, change).info)


def _change_yaml(storage: Storage, changes: Mapping[str, Any]) -> RepositoryConfig:
    for _ in attempts():
        fetched = fetch_if_there(storage, CONFIG_YAML)
        condition: Condition = CreateOnly()
        if fetched is not None:
            condition = ReplaceIfUnchanged(version=fetched.version)
        old = b"" if fetched is None else fetched.data
        before = decode_yaml_config(old)
        tree = changed_tree(before.raw, changes)
        # The new configuration is stored, also after a lost response.
        if tree == before.raw:
            return parse_config(tree, object_key=CONFIG_YAML)
        data = encode_yaml_config(old, tree)
        if isinstance(condition, ReplaceIfUnchanged):
            copy = overwritten_key(new_backup_name(now_in_microseconds(), of=CONFIG_YAML))
            if storage.copy(CONFIG_YAML, copy, source_version=condition.version) is None:
                continue
        if put_if(storage, CONFIG_YAML, data, condition):
            return decode_yaml_config(data)
    raise race_lost(storage.root_url, repr(CONFIG_YAML))
