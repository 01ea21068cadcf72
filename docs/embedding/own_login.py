"""A tree whose callers are the users of the application, by its own cookie; no JSON Web Token.

Run it with `.venv/bin/python docs/embedding/own_login.py`, and then, from another terminal:

    curl -X PUT -d 36 -b session=s-ada http://127.0.0.1:8080/users/ada/age.json
    curl http://127.0.0.1:8080/users/ada/age.json
"""

import sys
from pathlib import Path
from typing import Any

from twisted.application.strports import service as listening_service
from twisted.internet import reactor
from twisted.web.server import Site

from treedbd import ADMIN, Auth, Settings, TreeService

SESSIONS = {b"s-ada": "ada", b"s-root": "root"}
SETTINGS = Settings.from_values(
    folder=Path(__file__).parent,
    engine="memory",
    default_project="app",
    projects={"app": {"rules_file": "own_login.rules.json"}},
)


def identify(request: Any) -> Auth:
    """Return who sends a request: the `auth` of the rules, `ADMIN`, or None if not logged in."""
    user = SESSIONS.get(request.getCookie(b"session"))
    if user is None:
        return None
    return ADMIN if user == "root" else {"uid": user}


def main(endpoint: str) -> None:
    """Serve the tree until interrupted."""
    tree = TreeService(SETTINGS, reactor, identify=identify)
    site = listening_service(endpoint, Site(tree.resource()), reactor)
    for service in (tree, site):
        service.privilegedStartService()
        service.startService()
        reactor.addSystemEventTrigger("before", "shutdown", service.stopService)
    print("serving", flush=True)
    reactor.run()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "tcp:8080:interface=127.0.0.1")
