"""A Twisted application of its own that carries treedb under `/db/`.

Run it with `python docs/embedding.py`, and then, from another terminal:

    curl -X PUT -d '{"ada": 36}' http://127.0.0.1:8080/db/people.json
    curl http://127.0.0.1:8080/db/people.json
"""

import sys
from pathlib import Path

from twisted.application.internet import StreamServerEndpointService
from twisted.application.service import Application, IService, IServiceCollection
from twisted.internet import reactor
from twisted.internet.endpoints import serverFromString
from twisted.logger import globalLogBeginner, textFileLogObserver
from twisted.web.resource import Resource
from twisted.web.server import Site
from twisted.web.static import Data

from treedbd.config import Project, Settings
from treedbd.service import TreeService

SETTINGS = Settings(
    data=Path("embedded-data"),
    default_project="app",
    projects={"app": Project(rules_file=Path(__file__).with_name("embedding.rules.json"))},
)


def main(endpoint: str) -> None:
    """Serve a page of our own, and the tree beside it, until interrupted."""
    tree = TreeService(SETTINGS, reactor)

    root = Resource()
    root.putChild(b"", Data(b"The application's own page.\n", "text/plain"))
    root.putChild(b"db", tree.resource())
    site = StreamServerEndpointService(serverFromString(reactor, endpoint), Site(root))

    application = Application("embedding")
    tree.setServiceParent(IServiceCollection(application))
    site.setServiceParent(IServiceCollection(application))

    service = IService(application)
    globalLogBeginner.beginLoggingTo([textFileLogObserver(sys.stdout)])
    service.startService()
    reactor.addSystemEventTrigger("before", "shutdown", service.stopService)
    reactor.run()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "tcp:8080:interface=127.0.0.1")
