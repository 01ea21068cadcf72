"""A Twisted application that serves treedb under `/db/`.

Run it with `.venv/bin/python docs/embedding.py`, and then, from another terminal:

    curl -X PUT -d '{"ada": 36}' http://127.0.0.1:8080/db/people.json
    curl http://127.0.0.1:8080/db/people.json
"""

import sys
from pathlib import Path

from twisted.application.service import Application, IService, IServiceCollection
from twisted.application.strports import service as listening_service
from twisted.internet import reactor
from twisted.internet.error import CannotListenError
from twisted.logger import globalLogBeginner, textFileLogObserver
from twisted.web.iweb import IAccessLogFormatter
from twisted.web.resource import Resource
from twisted.web.server import Request, Site
from twisted.web.static import Data
from zope.interface import provider

from treedbd import CannotStart, ProjectSettings, Settings, TreeService

SETTINGS = Settings(
    data=Path("embedded-data"),
    default_project="app",
    projects={"app": ProjectSettings(rules_file=Path(__file__).with_name("embedding.rules.json"))},
)


@provider(IAccessLogFormatter)
def log_line(timestamp: str, request: Request) -> str:
    """Return the log line of a request, without its query: that may contain a token."""
    client = getattr(request.getClientAddress(), "host", "-")
    path = request.uri.partition(b"?")[0]
    return f"{client} {timestamp} {request.method!r} {path!r} {request.code} {request.sentLength}"


def main(endpoint: str) -> None:
    """Serve a page of the application, and the tree beside it, until interrupted."""
    tree = TreeService(SETTINGS, reactor)

    root = Resource()
    root.putChild(b"", Data(b"The application's own page.\n", "text/plain"))
    root.putChild(b"db", tree.resource())
    site = listening_service(endpoint, Site(root, logFormatter=log_line), reactor)

    application = Application("embedding")
    tree.setServiceParent(IServiceCollection(application))
    site.setServiceParent(IServiceCollection(application))

    service = IService(application)
    observers = [textFileLogObserver(sys.stdout)]
    globalLogBeginner.beginLoggingTo(observers, redirectStandardIO=False)
    try:
        service.privilegedStartService()  # opens what `listen` in the settings names
        service.startService()
    except (CannotStart, CannotListenError) as error:
        sys.exit(f"embedding: {error}")
    reactor.addSystemEventTrigger("before", "shutdown", service.stopService)
    reactor.run()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "tcp:8080:interface=127.0.0.1")
