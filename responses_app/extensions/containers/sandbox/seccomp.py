"""A filter of system calls: what code in a sandbox has no use for, and what would reach around its limits.

It is written for bubblewrap, which loads it before the program starts. What is refused, and why:
mounts, modules, other namespaces, tracing and the like, which are how sandboxes were left in the past; memory that no
limit counts (memfd, System V shared memory, kernel keys, io_uring, rings of the older kind, of which the whole machine
has a number); every kind of socket but the local one, because buffers of TCP are counted for the whole machine (a
container with a proxy has sockets of TCP); and changing the cores that the processes were given.

A call that this page does not know is none (ENOSYS): what a newer kernel has was not judged, and programs go on without
it, as they do on an older kernel.

The numbers are those of the kernel's `unistd.h` of each machine. The program is classic BPF (`linux/filter.h`): eight
bytes an instruction, jumps go forward only, over at most 255 instructions.
"""

import errno
import platform
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

# BPF's codes: load a word, three tests, return, keep some bits.
_LOAD, _EQUALS, _AT_LEAST, _HAS_BITS, _RETURN, _AND = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
# Offsets in `struct seccomp_data`; of an argument, that of its lower half.
_NUMBER, _MACHINE, _FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT, _FIFTH_ARGUMENT = 0, 4, 16, 24, 32, 48
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000  # SECCOMP_RET_…; an error has its number in the lower half
_AF_UNIX, _AF_INET = 1, 2
_SOCK_STREAM, _KIND = 1, 0xF  # the kind of a socket is in these bits
_TCP, _TCP_ULP = 6, 31  # IPPROTO_TCP, which is SOL_TCP, too; of `linux/tcp.h`
_NAMESPACES = 0x7E020000  # CLONE_NEW…: user, pid, network, ipc, uts, cgroup, mount
_X32 = 0x40000000  # calls of another convention, on the same processor
# Calls that were judged: all up to the end of the machine's own (`_Machine.last_own`), and from the first that all
# machines number alike, of Linux 5.1, to the last of Linux 6.13 (`removexattrat`).
_FIRST_COMMON, _LAST_COMMON = 424, 466

# (x86_64, aarch64); None where the machine does not have the call.
# Numbers stand in one table: a call that is missing in one machine's column cannot be overlooked.
_REFUSED: Mapping[str, tuple[int | None, int | None]] = {
    **{"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272)},
    **{"mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51)},
    **{"open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431)},
    **{"fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442)},
    **{"setns": (308, 268), "unshare": (272, 97), "pidfd_getfd": (438, 438)},
    **{"name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262)},
    **{"init_module": (175, 105), "delete_module": (176, 106), "finit_module": (313, 273)},
    **{"kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "acct": (163, 89)},
    **{"swapon": (167, 224), "swapoff": (168, 225), "quotactl": (179, 60), "quotactl_fd": (443, 443)},
    **{"syslog": (103, 116)},
    **{"sethostname": (170, 161), "setdomainname": (171, 162), "personality": (135, 92), "vhangup": (153, 58)},
    **{"settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266)},
    **{"iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None)},
    **{"bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282)},
    **{"io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427)},
    **{"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219)},
    **{"memfd_create": (319, 279), "memfd_secret": (447, 447), "io_setup": (206, 0)},
    **{"shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195)},
    **{"msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180)},
    **{"sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119), "sched_setattr": (314, 274)},
}
# What reaches a local socket by its name.
_TALKS: Mapping[str, tuple[int | None, int | None]] = {
    **{"socket": (41, 198), "connect": (42, 203), "sendmsg": (46, 211), "sendmmsg": (307, 269)},
}


@dataclass(frozen=True, slots=True)
class _Machine:
    column: int  # in `_REFUSED`
    audit: int  # AUDIT_ARCH_… of `linux/audit.h`
    last_own: int  # the last number before those that all machines have
    socket: int
    socketpair: int
    clone: int
    sendto: int
    setsockopt: int
    clone3: int = 435


_MACHINES = {
    "x86_64": _Machine(0, 0xC000003E, last_own=334, socket=41, socketpair=53, clone=56, sendto=44, setsockopt=54),
    "aarch64": _Machine(1, 0xC00000B7, last_own=294, socket=198, socketpair=199, clone=220, sendto=206, setsockopt=208),
}
UNKNOWN_MACHINE = f"it is used on {' and '.join(_MACHINES)} only"  # what a sandbox says where `can_filter` is false


def can_filter() -> bool:
    """Whether the numbers of this machine's system calls are known."""
    return platform.machine() in _MACHINES


@cache
def program(machine: str | None = None, *, local_sockets: bool = True, tcp: bool = False) -> bytes:
    """Return the filter as the kernel loads it. Raises `KeyError` for a machine that is not known.

    Without `local_sockets` nothing can be talked to but by pipes and pairs of sockets. With `tcp` there are sockets of
    TCP, for a network of its own: the host looks at what they hold (`processes.tcp_sockets`).
    """
    known = _MACHINES[machine or platform.machine()]
    refused = [numbers[known.column] for numbers in _REFUSED.values()]
    if not local_sockets:
        refused += [numbers[known.column] for numbers in _TALKS.values()]
    return b"".join(
        (
            _step(_LOAD, _MACHINE),
            _step(_EQUALS, known.audit, then=1),
            # A call of another machine's convention has other numbers: none of them is judged.
            _step(_RETURN, _KILL),
            _step(_LOAD, _NUMBER),
            # x32 calls have this bit; refused, not unknown, as such programs are none of ours.
            *_unless(_step(_AT_LEAST, _X32, otherwise=1), errno.EPERM),
            *_unless(_step(_AT_LEAST, _LAST_COMMON + 1, otherwise=1), errno.ENOSYS),
            # Common numbers pass over the next test, which is of the machine's own.
            _step(_AT_LEAST, _FIRST_COMMON, then=2),
            *_unless(_step(_AT_LEAST, known.last_own + 1, otherwise=1), errno.ENOSYS),
            *(
                part
                for number in refused
                if number is not None
                for part in _unless(_step(_EQUALS, number, otherwise=1), errno.EPERM)
            ),
            # Its flags lie in memory that a filter cannot read; told that there is no such call, the C library
            # uses `clone`, whose flags are an argument.
            *_unless(_step(_EQUALS, known.clone3, otherwise=1), errno.ENOSYS),
            # `clone` makes threads, too: it is refused only with flags of new namespaces.
            _step(_EQUALS, known.clone, otherwise=3),
            _step(_LOAD, _FIRST_ARGUMENT),
            *_unless(_step(_HAS_BITS, _NAMESPACES, otherwise=1), errno.EPERM),
            _step(_LOAD, _NUMBER),
            *(() if local_sockets else _without_address(known)),
            *(_with_tcp(known) if tcp else ()),
            _step(_EQUALS, known.socketpair, then=1),  # to ask for a kind of socket has the system load what makes it
            _step(_EQUALS, known.socket, otherwise=3),
            _step(_LOAD, _FIRST_ARGUMENT),
            _step(_EQUALS, _AF_UNIX, then=1),
            _step(_RETURN, _ERROR | errno.EACCES),
            _step(_RETURN, _ALLOW),
        )
    )


def _without_address(known: _Machine) -> tuple[bytes, ...]:
    """Let `sendto` send to nobody but the other end of its socket: its address is to be a null pointer."""
    # A pointer has 64 bits, and BPF loads 32.
    low, high = _FIFTH_ARGUMENT, _FIFTH_ARGUMENT + 4
    return (
        _step(_EQUALS, known.sendto, otherwise=6),
        _step(_LOAD, low),
        _step(_EQUALS, 0, otherwise=2),
        _step(_LOAD, high),
        _step(_EQUALS, 0, then=1),
        _step(_RETURN, _ERROR | errno.EACCES),
        _step(_LOAD, _NUMBER),
    )


def _with_tcp(known: _Machine) -> tuple[bytes, ...]:
    """Let sockets of TCP over IPv4 be made: plain ones, without other protocols upon it."""
    return (
        _step(_EQUALS, known.setsockopt, otherwise=6),
        _step(_LOAD, _SECOND_ARGUMENT),
        _step(_EQUALS, _TCP, otherwise=3),
        _step(_LOAD, _THIRD_ARGUMENT),
        _step(_EQUALS, _TCP_ULP, otherwise=1),
        _step(_RETURN, _ERROR | errno.EPERM),
        _step(_LOAD, _NUMBER),
        _step(_EQUALS, known.socket, otherwise=11),
        _step(_LOAD, _FIRST_ARGUMENT),
        _step(_EQUALS, _AF_INET, otherwise=8),
        _step(_LOAD, _SECOND_ARGUMENT),
        _step(_AND, _KIND),
        _step(_EQUALS, _SOCK_STREAM, otherwise=3),
        _step(_LOAD, _THIRD_ARGUMENT),
        # 0 is the usual protocol of the kind.
        _step(_EQUALS, 0, then=2),
        _step(_EQUALS, _TCP, then=1),
        _step(_RETURN, _ERROR | errno.EACCES),
        _step(_RETURN, _ALLOW),
        _step(_LOAD, _NUMBER),
    )


def _unless(test: bytes, error: int) -> tuple[bytes, bytes]:
    """Return a test, and the error for calls that do not jump over it."""
    return test, _step(_RETURN, _ERROR | error)


def _step(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """Return an instruction; a test goes on `then` or `otherwise` many further."""
    # Code, two jumps and the value, in the machine's own order.
    return struct.pack("=HBBI", code, then, otherwise, value)
