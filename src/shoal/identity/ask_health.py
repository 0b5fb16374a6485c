"""Asks the manager on this machine if it is ready: ``python -m shoal.identity.ask_health [PORT]`` ends with 0 or 1.

For the check of a container, which has no curl. PORT is where devices join.
"""

from __future__ import annotations

import http.client
import ssl
import sys

from shoal.identity import health

#: Where devices join by default.
JOIN_PORT = 7071
TIMEOUT_S = 5.0


def readiness(port: int) -> tuple[bool, str]:
    """Whether the manager on this machine would serve a device, and what it said or why it said nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # It is this machine, and nothing is told: who answers does not matter.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([health.ALPN])
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_S, context=context)
    try:
        connection.request("GET", health.READY)
        with connection.getresponse() as answer:
            return answer.status == http.client.OK, answer.read(1000).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        return False, f"nobody answers at port {port}: {error}"
    finally:
        connection.close()


def main(arguments: list[str]) -> int:
    is_ready, told = readiness(int(arguments[0]) if arguments else JOIN_PORT)
    print(told)
    return 0 if is_ready else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
