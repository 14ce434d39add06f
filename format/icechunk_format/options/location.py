"""Makes the location of a repository from options."""

from __future__ import annotations

from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteRequest
from icechunk_format.storage.credentials import with_credentials
from icechunk_format.storage.location import Location
from icechunk_format.storage.options import VirtualAccess


def location_of(options: ReadRequest | WriteRequest) -> Location:
    """Return the location of the repository that is read or written."""
    settings = with_credentials(options.credentials, options.storage_options, options.path)
    return Location(url=options.path, client=options.storage_client, options=settings)


def access_of(options: ReadRequest | WriteRequest) -> VirtualAccess:
    """Return the right to fetch virtual chunks that the options grant."""
    settings = with_credentials(options.virtual_credentials, options.virtual_storage_options)
    return VirtualAccess(options.virtual_authorize, settings)
