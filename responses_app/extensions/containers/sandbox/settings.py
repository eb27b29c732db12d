"""The settings of containers, and the folders inside of one that its programs and its host both know."""

from collections.abc import Container
from dataclasses import dataclass

from responses_app.protocol.setting import KIB, MIB, RoomSettings, choice, seconds, setting, text, whole

KEPT_OUTPUT = 128 * KIB  # bytes of what a cell prints: half of them from its beginning, and half from its end
SKILLS_FOLDER = "/mnt/skills"  # each in a folder of its own; nothing inside can write there
WORK_FOLDER = "/mnt/data"  # where the model was told that files are kept


SCRATCH = "/tmp"  # inside
MAX_HOSTS = 100  # each worker has a connection to each
LEAST_SECRET = 16  # characters


def sandbox_kind(value: str) -> str:
    """The sandbox that keeps code apart."""
    if value.strip().lower() == "pyeryx":
        raise ValueError("one of auto, bubblewrap, sandlock, off; pyeryx has no package for the Python of this server")
    return choice("auto", "bubblewrap", "sandlock", "off")(value)


def hosts(value: str) -> tuple[str, ...]:
    """Hosts of containers: paths of Unix sockets, and addresses with their port."""
    hosts = tuple(dict.fromkeys(host.strip() for host in value.split(",") if host.strip()))
    for host in hosts:
        name, _, port = host.rpartition(":")
        if not host.startswith("/") and ("/" in host or not name or not port.isdecimal() or int(port) > 65535):
            raise ValueError(
                "addresses with a port, or paths of sockets, separated by commas, like box-1:8100,/run/box"
            )
    if len(hosts) > MAX_HOSTS:
        raise ValueError(f"at most {MAX_HOSTS} hosts")
    return hosts


def shared_secret(value: str) -> str:
    """A secret that is long enough."""
    if len(value.strip()) < LEAST_SECRET:
        raise ValueError(f"a secret of at least {LEAST_SECRET} characters")
    return value.strip()


@dataclass(frozen=True, kw_only=True)
class SandboxSettings(RoomSettings):
    """The settings of containers: which sandbox keeps them apart, what one may use, and how many there may be."""

    sandbox: str = setting(
        "auto", sandbox_kind,
        "sandbox for code written by the model: the first one that works here (`auto`), a certain one, or `off` "
        "for no code interpreter (see Code interpreter)",
    )  # fmt: skip
    sandbox_python: str = setting(
        "", text,
        "Python of the sandbox: the model's code can import its packages",
        default_text="the Python that the server's environment was made with",
    )  # fmt: skip
    sandbox_memory_bytes: int = setting(
        1024 * MIB, whole(64 * MIB),
        "maximum memory of all processes of a container; a container has 1 GiB unless the request sets "
        "`memory_limit`",
    )  # fmt: skip
    sandbox_disk_bytes: int = setting(
        256 * MIB, whole(MIB), "maximum size of the files of a container, which are kept in memory"
    )
    sandbox_max_processes: int = setting(64, whole(8, 4096), "processes and threads of one container")
    sandbox_call_seconds: float = setting(
        120.0, seconds(0.1), "how long the code of one call may run; then it is interrupted"
    )
    sandbox_max_containers: int = setting(
        32, whole(1, 4096),
        "containers of one host that are in memory at once; for a new one, the container that has been idle longest "
        "is saved on disk",
    )  # fmt: skip
    sandbox_project_containers: int = setting(
        0, whole(0, 4096),
        "containers of one project that may run code at once on one host; further calls wait; 0 = three "
        "quarters of SANDBOX_MAX_CONTAINERS",
    )  # fmt: skip
    sandbox_wait_seconds: float = setting(30.0, seconds(0), "how long a call waits for a free container; then it fails")
    sandbox_idle_seconds: float = setting(1200.0, seconds(1), "how long a container may be idle; then it expires")
    sandbox_save_seconds: float = setting(
        1200.0, seconds(1),
        "how long an idle container stays in memory; then its files are saved on disk, and its variables are lost",
    )  # fmt: skip
    sandbox_saved_bytes: int = setting(
        2048 * MIB, whole(0),
        "disk space of one host for the files of idle containers, in DATA_DIR/containers; 0 = containers are not "
        "saved, they end instead",
    )  # fmt: skip
    sandbox_hosts: tuple[str, ...] = setting(
        (), hosts,
        "where containers are: hosts of `respsite sandboxes`, as `name:port` or the path of a Unix socket, "
        "separated by commas",
        default_text="unset: a process that `respsite serve` starts; with another server, its own process",
    )  # fmt: skip
    sandbox_secret: str = setting(
        "", shared_secret,
        "secret that workers and the hosts of `respsite sandboxes --listen HOST:PORT` share",
        default_text="unset", secret=True,
    )  # fmt: skip
    sandbox_tls_cert: str = setting(
        "", text, "file with the TLS certificate of `respsite sandboxes --listen HOST:PORT`", default_text="unset"
    )
    sandbox_tls_key: str = setting("", text, "file with the private key of SANDBOX_TLS_CERT", default_text="unset")
    sandbox_tls_ca: str = setting(
        "", text,
        "file with the certificates that workers trust for the hosts in SANDBOX_HOSTS",
        default_text="unset: those of the system",
    )  # fmt: skip

    def problem(self, given: Container[str]) -> str | None:
        """Return why settings do not fit together; None where they do."""
        if not self.sandbox_secret and any("/" not in each for each in self.sandbox_hosts):
            return "SANDBOX_HOSTS names another machine, and SANDBOX_SECRET is not set: the hosts there ask for it."
        return None
