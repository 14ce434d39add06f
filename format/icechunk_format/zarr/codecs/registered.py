"""Finds codecs of other installed packages, and names the package to install if one is missing.

Rules of this file
------------------
1. Only numcodecs codecs are used: classes with ``encode`` and ``decode`` on bytes or arrays.
2. Metadata is untrusted: names never resolve to numcodecs' own codecs, some of which execute
   decoded data (``pickle``).
3. A missing codec raises ``UnsupportedError``, which names the array and the package to install.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final

from numcodecs import registry

from icechunk_format.errors import UnsupportedError
from icechunk_format.zarr.codecs.steps import CodecSpec, ConfigurationError
from icechunk_format.zarr.named_configuration import shortened

_PACKAGES: Final = {
    "gribberish": "gribberish",
    "numcodecs.pcodec": "numcodecs[pcodec]",
    "pcodec": "numcodecs[pcodec]",
    "numcodecs.zfpy": "numcodecs[zfpy]",
    "zfpy": "numcodecs[zfpy]",
    "imagecodecs": "imagecodecs",
    "jpegxl": "imagecodecs",
}


def find_registered_codec(spec: CodecSpec) -> Any:
    """Return the numcodecs-style codec that an installed package registers under a name.

    Raises UnsupportedError if no package does, ConfigurationError if it refuses the parameters.
    """
    codec_class = _find_class(spec.name)
    if codec_class is None:
        raise unsupported_codec(spec)
    try:
        return codec_class.from_config(dict(spec.configuration))
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigurationError(f"its package refuses its parameters: {error}") from error


def import_optional(module: str, spec: CodecSpec) -> Any:
    """Import the library of a codec, or raise UnsupportedError."""
    try:
        return import_module(module)
    except ImportError as error:
        raise unsupported_codec(spec) from error


def unsupported_codec(spec: CodecSpec) -> UnsupportedError:
    """Return the error for a missing codec; it names the package to install."""
    name = spec.name
    package = _PACKAGES.get(name)
    if package is None and name.startswith("imagecodecs_"):
        package = "imagecodecs"
    if package is not None:
        advice = f"install it where the data is read and written: pip install '{package}'"
    else:
        advice = (
            "install the Python package that registers a numcodecs codec of that name, or select "
            "other arrays"
        )
    return UnsupportedError(
        f"array {spec.where.node_path!r} is stored with codec {shortened(name)}, which is not "
        f"available; {advice}",
        node_path=spec.where.node_path,
        codec=name[:200],
        package=package,
    )


def _find_class(name: str) -> Any:
    codec_id = name.removeprefix("numcodecs.")
    found = registry.codec_registry.get(codec_id)
    if found is None and codec_id in registry.entries:
        found = _load(registry.entries[codec_id])
    if found is None:
        for entry in entry_points(group="zarr.codecs", name=name):
            found = _load(entry)
    if found is None or str(getattr(found, "__module__", "")).startswith("numcodecs."):
        return None
    is_numcodecs_style = all(
        callable(getattr(found, attribute, None))
        for attribute in ("from_config", "encode", "decode")
    )
    return found if is_numcodecs_style else None


def _load(entry: Any) -> Any:
    try:
        return entry.load()
    except (ImportError, AttributeError):
        # A package that does not load is treated as not installed.
        return None
