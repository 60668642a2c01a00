"""What spans and metrics say of the server that sends them."""

from __future__ import annotations

import os
import secrets
import socket

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from swanlake._version import __version__

_SERVICE = "swanlake"
#: The same for all that this process sends.
_INSTANCE = f"{socket.gethostname()}:{secrets.token_hex(4)}"

#: The part of the program that sends.
SCOPE = InstrumentationScope("swanlake.server", __version__)


def read_resource() -> Resource:
    """The attributes of this server, with those of ``OTEL_RESOURCE_ATTRIBUTES``."""
    return Resource.create(
        {
            "service.name": os.environ.get("OTEL_SERVICE_NAME") or _SERVICE,
            "service.version": __version__,
            "service.instance.id": _INSTANCE,
        }
    )
