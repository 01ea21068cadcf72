"""The image of `conf/Containerfile`, and `conf/compose.yaml`, which runs it."""

from __future__ import annotations

import pathlib
from typing import Any

import yaml

from tests.container import CONTAINERFILE, health_command, last, make_container, read_steps
from tests.daemon import request

CONF = pathlib.Path(__file__).parent.parent / "conf"


def test_the_image_serves_is_healthy_and_stops() -> None:
    with make_container() as container:
        assert not container.is_healthy()
        container.start()
        assert container.is_healthy()
        assert request(container.url, "PUT", "/a.json", "1").short == (200, b"1")
        assert request(container.url, "GET", "/a.json").short == (200, b"1")
        assert container.stop() == 0


def test_the_image_has_no_rights_and_a_pinned_base() -> None:
    steps = read_steps()
    bases = [step.rest.split()[0] for step in steps if step.name == "FROM"]
    assert len(bases) == 2
    for base in bases:
        name, _, tag = base.rpartition(":")
        assert name.startswith("docker.io/library/")
        assert tag not in {"", "latest"}
    assert last(steps, "USER").rest == "10001:10001"
    assert last(steps, "STOPSIGNAL").rest == "SIGTERM"
    assert "EXPOSE 8080" in CONTAINERFILE.read_text()


def test_the_image_has_only_packages_of_the_lock_file() -> None:
    installations = [
        part.split()
        for step in read_steps()
        if step.name == "RUN"
        for part in step.rest.split(" && ")
        if "install " in part
    ]
    locked, itself = installations
    assert locked == [".ci/install", "/opt/treedb", "treedb"]
    assert {"--no-deps", "--no-build-isolation", "."} <= {*itself}


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CONF / "compose.yaml").read_text())
    return loaded


def test_compose_runs_the_image_as_it_is_made() -> None:
    steps, file = read_steps(), compose()
    (service,) = file["services"].values()
    assert (CONF / service["build"]["context"] / service["build"]["dockerfile"]).samefile(
        CONTAINERFILE
    )
    assert service["user"] == last(steps, "USER").rest
    ((host, _, port),) = (each.split(":") for each in service["ports"])
    assert (host, port) == ("127.0.0.1", last(steps, "EXPOSE").rest)
    (volume, place), (_, config, mode) = (each.split(":") for each in service["volumes"])
    assert place == last(steps, "VOLUME").rest
    assert volume in file["volumes"]
    assert (f"{config}/treedb.toml", mode) == (last(steps, "CMD").words[1], "ro")
    check = service["healthcheck"]
    assert check["test"] == ["CMD", *health_command(steps)]
    options = last(steps, "HEALTHCHECK").rest
    for name in ("interval", "timeout", "start_period", "retries"):
        assert f"--{name.replace('_', '-')}={check[name]}" in options


def test_compose_leaves_a_container_nothing_but_its_volume() -> None:
    (service,) = compose()["services"].values()
    assert service["read_only"] is True
    assert service["tmpfs"] == ["/tmp"]
    assert service["cap_drop"] == ["ALL"]
    assert "privileged" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped"
