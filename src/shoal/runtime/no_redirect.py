"""HTTP requests go to the address that was named, and nowhere else."""

from __future__ import annotations

import urllib.request
from typing import Any


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an error with its status code, as every other answer that is not a success."""

    def redirect_request(self, *_: Any) -> None:
        return None
