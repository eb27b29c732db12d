"""What `deploy/` and the pages of `docs/` say is so: each file by the program that reads it, or by its schema."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from responses_app.api.endpoints import ENDPOINTS
from responses_app.extensions.containers.sandbox.containers import SAVE_SECONDS
from responses_app.management.processes import ENGINE_STOP_SECONDS
from responses_app.management.supervisor import pace
from responses_app.protocol.setting import MIB
from responses_app.settings.conf import Settings, from_environ, secret_files, table
from responses_app.web.bodies import RequestHead
from respsite.application import body_rules
from tests.kit import pip
from tests.kit.server import ROOT
from tests.system.cluster.processes import CONF, NGINX, TEMPLATE, site

DEPLOY, DOCS = ROOT / "deploy", ROOT / "docs" / "how-to"
MANIFESTS = DEPLOY / "kubernetes" / "respsite.yaml"
SANDBOXES = DEPLOY / "kubernetes" / "sandboxes.yaml"
COMPOSE = DEPLOY / "compose.yaml"
SECONDS = 60.0
SETTINGS = {*(row.name for row in table()), *secret_files()}
THEIRS = {"RESPSITE_LISTEN", "RESPSITE_NAMES", "RESPSITE_TLS", "RESPSITE_UPSTREAM"}  # of the template for nginx
GRACE = pace(grace_seconds=Settings().shutdown_grace_seconds, start_seconds=0, silence_seconds=0).leave_seconds
POSTGRES_CONNECTIONS = 100 - 3 - 5  # less those of its superusers, and some for pages of the admin, commands, backups
SPARE = 10.0  # seconds that a stop is given beyond all that it may take


def run(*command: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run a program that checks a file."""
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)


def manifests(file: Path = MANIFESTS) -> dict[str, dict[str, Any]]:
    """Return Kubernetes' objects by their kinds."""
    return {each["kind"]: each for each in yaml.safe_load_all(file.read_text())}


@pytest.mark.parametrize("file", [MANIFESTS, SANDBOXES], ids=lambda file: file.name)
def test_the_manifests_fit_the_schemas_of_kubernetes(file: Path) -> None:
    python = pip.installed(Path(__file__).parent / "requirements.txt")
    done = run(python, "-m", "kubernetes_validate", "--strict", file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count(" passed ") == len(manifests(file))


def test_the_manifests_fit_each_other() -> None:
    objects = manifests()
    pod = objects["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    for kind in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
        selector = objects[kind]["spec"].get("selector") or objects[kind]["spec"]["podSelector"]
        assert selector.get("matchLabels", selector).items() <= pod["metadata"]["labels"].items()
    settings = objects["ConfigMap"]["data"]
    assert set(settings) <= SETTINGS
    read_here = {name: value for name, value in settings.items() if not name.endswith("_FILE")}
    settings_read, warnings = from_environ({**read_here, "HOST": "0.0.0.0"})
    assert (settings_read.behind_proxy, settings_read.auth, warnings) == ("tls", "on", [])
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    for name, path in settings.items():
        assert not name.endswith("_FILE") or str(Path(path).parent) in mounted
    *workers, one_more = [settings_read.worker_max_memory_bytes] * (settings_read.workers + 1)
    assert 0 < sum(workers) + one_more < int(container["resources"]["limits"]["memory"].removesuffix("Gi")) * 2**30
    program, seconds = container["lifecycle"]["preStop"]["exec"]["command"]  # no `sleep` of Kubernetes' own before 1.30
    assert program == "sleep"
    assert pod["spec"]["terminationGracePeriodSeconds"] > GRACE + int(seconds)


def test_proxies_take_as_large_bodies_as_the_server() -> None:
    template, rules = TEMPLATE.read_text(), body_rules(Settings(), lambda error: None)
    sizes = [int(size) * MIB for size in re.findall(r"client_max_body_size (\d+)m;", template)]
    (uploads,) = re.findall(r"location ~ (\S+) \{\s+client_max_body_size", template)
    largest = [0, 0]  # that the server takes where each of the two sizes counts
    for path in {each.path for each in ENDPOINTS if "POST" in each.methods}:
        path = re.sub(r"\{.*?\}", "a", path)
        assert bool(re.match(uploads, path)) == bool(re.match(uploads, f"/rollouts/a{path}"))
        for kind in (b"application/json", b"multipart/form-data"):
            head = RequestHead.of("POST", path, "", [(b"content-type", kind), (b"content-length", b"9" * 15)])
            place = 1 if re.match(uploads, path) else 0
            largest[place] = max(largest[place], rules.limit(head))
    assert [0 < size - taken < 2 * MIB for size, taken in zip(sizes, largest, strict=True)] == [True, True]
    annotations = manifests()["Ingress"]["metadata"]["annotations"]
    assert annotations["nginx.ingress.kubernetes.io/proxy-body-size"] == f"{sizes[1] // MIB}m"
    assert f"max_size {sizes[1] // MIB}MiB\n" in (DEPLOY / "caddy" / "Caddyfile").read_text()


def test_the_manifests_of_containers_fit_each_other_and_those_of_the_server() -> None:
    objects, server = manifests(SANDBOXES), manifests()
    hosts = objects["StatefulSet"]["spec"]
    pod = hosts["template"]
    (container,) = pod["spec"]["containers"]
    labels = pod["metadata"]["labels"]
    assert objects["Service"]["spec"]["selector"] == hosts["selector"]["matchLabels"] == labels
    assert objects["Service"]["metadata"]["name"] == hosts["serviceName"]
    assert objects["Service"]["spec"]["clusterIP"] == "None", "each host has a name of its own"
    policy = objects["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    (rule,) = policy["ingress"]
    (came,) = rule["from"]
    assert (
        came["podSelector"]["matchLabels"].items()
        <= server["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    )
    assert (policy["egress"], sorted(policy["policyTypes"])) == ([], ["Egress", "Ingress"])
    settings = {each["name"]: each["value"] for each in container["env"]}
    assert set(settings) <= SETTINGS
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    for name in ("SANDBOX_SECRET_FILE", "SANDBOX_TLS_CERT", "SANDBOX_TLS_KEY"):
        assert str(Path(settings[name]).parent) in mounted
    port = container["ports"][0]["containerPort"]
    assert container["command"] == ["respsite", "sandboxes", "--listen", f"0.0.0.0:{port}"]
    named = ",".join(f"sandboxes-{number}.sandboxes:{port}" for number in range(hosts["replicas"]))
    assert f"SANDBOX_HOSTS: {named}\n" in SANDBOXES.read_text()
    needed = Settings().shutdown_grace_seconds + SAVE_SECONDS
    assert pod["spec"]["terminationGracePeriodSeconds"] >= needed + SPARE


def test_the_workers_of_each_example_need_fewer_connections_than_postgresql_has_by_itself() -> None:
    kubernetes, compose = manifests(), yaml.safe_load(COMPOSE.read_text())
    pods = kubernetes["Deployment"]["spec"]
    most = pods["replicas"] + pods["strategy"]["rollingUpdate"]["maxSurge"]
    of_systemd = dict(
        line.split("=", 1) for line in (DEPLOY / "systemd" / "respsite.env").read_text().splitlines() if line[0] != "#"
    )
    servers = {
        "kubernetes": (most, kubernetes["ConfigMap"]["data"]),
        "compose": (1, compose["services"]["respsite"]["environment"]),
        "systemd": (1, of_systemd),
    }
    for name, (number, settings) in servers.items():
        each = int(settings.get("DATABASE_CONNECTIONS", Settings().database_connections))
        workers = int(settings["WORKERS"]) + 1  # one more while they are replaced
        assert number * workers * each < POSTGRES_CONNECTIONS, name


def test_the_compose_file_fits_itself() -> None:
    compose = yaml.safe_load(COMPOSE.read_text())
    for name, service in compose["services"].items():
        assert set(service.get("depends_on", ())) <= set(compose["services"]), name
        assert set(service.get("secrets", ())) <= set(compose["secrets"]), name
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in compose["volumes"] or (DEPLOY / source).is_dir(), name
        assert service.get("image", "built").rpartition(":")[2] != "latest"
    respsite = compose["services"]["respsite"]
    assert set(respsite["environment"]) <= SETTINGS
    assert int(respsite["stop_grace_period"].removesuffix("s")) > GRACE
    assert (DEPLOY / respsite["build"]["context"] / respsite["build"]["dockerfile"]).exists()
    assert {name for name in compose["services"]["nginx"]["environment"] if name.startswith("RESPSITE")} <= THEIRS
    (user,) = re.findall(r"useradd .*--uid (\d+)", (DEPLOY / "Dockerfile").read_text())
    assert f"chown {user} " in COMPOSE.read_text()  # who has to be able to read the files with its secrets


def test_the_image_has_what_it_copies() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY ") and "--from" not in line for word in shlex.split(line)]
    sources = {word for word in copied if word not in ("COPY", "./")}
    assert {"engine", "respsite", "responses_app", "docs", "constraints.txt"} <= sources
    assert [name for name in sources if not (ROOT / name).exists()] == []
    kept = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line.removeprefix("!") for line in kept if line.startswith("!")} == sources


def test_the_image_runs_as_nobody_and_with_settings_that_are_good() -> None:
    python = pip.installed(Path(__file__).parent / "requirements.txt")
    done = run(python.parent / "hadolint", "--no-color", DEPLOY / "Dockerfile")
    assert done.returncode == 0, done.stdout
    text = (DEPLOY / "Dockerfile").read_text()
    (line,) = re.findall(r"^ENV (.*)$", text, re.MULTILINE)
    environ = dict(word.split("=", 1) for word in shlex.split(line))
    settings_read, warnings = from_environ(environ)
    assert (set(environ) - {"PYTHONUNBUFFERED"} <= SETTINGS, settings_read.serves_loopback, warnings) == (
        True,
        False,
        [],
    )
    assert re.search(r"^USER 10001$", text, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert json.loads(re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[0]) == list(project["scripts"])


def test_nginx_takes_the_file_with_tls(tmp_path: Path) -> None:
    if NGINX is None:
        pytest.skip("nginx is not installed: make services")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ("-subj", "/CN=models.example.com", "-keyout", key, "-out", certificate)
    made = run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", *subject)
    assert made.returncode == 0, made.stderr
    tls = f"ssl_certificate {certificate}; ssl_certificate_key {key};"
    filled_in = site(listen="127.0.0.1:8443 ssl", upstreams=["127.0.0.1:8000"], names="models.example.com", tls=tls)
    assert "${" not in filled_in.partition("map $http_upgrade")[2]
    (tmp_path / "respsite.conf").write_text(filled_in)
    (tmp_path / "nginx.conf").write_text(CONF.format(folder=tmp_path, user=""))
    done = run(NGINX, "-t", "-p", tmp_path, "-e", "stderr", "-c", tmp_path / "nginx.conf")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["respsite.service", "respsite-sandboxes.service", "vllm.service"])
def test_systemd_takes_the_units(name: str) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "systemd" / name)
    needed = {
        "respsite.service": GRACE + ENGINE_STOP_SECONDS + SPARE,
        "respsite-sandboxes.service": Settings().shutdown_grace_seconds + SAVE_SECONDS + SPARE,
    }.get(name, 0)
    assert int(unit["Service"]["TimeoutStopSec"]) > needed
    if (analyze := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd is not installed")
    done = run(analyze, "verify", DEPLOY / "systemd" / name)
    told = [line for line in done.stderr.splitlines() if name in line]  # it looks at the machine's own units, too
    # The second is of systemd 254; the docs say so.
    fine = ("is not executable: No such file", "Unknown key 'DelegateSubgroup'")
    assert [line for line in told if not any(each in line for each in fine)] == []


def test_the_unit_of_vllm_has_the_flags_that_the_docs_explain() -> None:
    wanted, started = (
        shlex.split(re.findall(r"vllm serve ((?:.*\\\n)*.*)", text)[0].replace("\\\n", ""))
        for text in ((DOCS / "real-model.md").read_text(), (DEPLOY / "systemd" / "vllm.service").read_text())
    )
    assert len(wanted) > 10
    assert set(wanted) <= set(started)


def test_the_settings_of_the_unit_are_settings() -> None:
    lines = (DEPLOY / "systemd" / "respsite.env").read_text().splitlines()
    environ = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    _, warnings = from_environ(environ)
    assert set(environ) <= SETTINGS
    assert warnings == []


def test_metrics_that_are_named_exist() -> None:
    dashboard = json.dumps(json.loads((DEPLOY / "grafana" / "respsite.json").read_text()))
    named = set(re.findall(r"respsite_\w+", (DOCS / "deployment.md").read_text()))
    assert named
    assert [name for name in named if name not in dashboard] == []
