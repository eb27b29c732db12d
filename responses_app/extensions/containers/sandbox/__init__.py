"""Containers of the code interpreter: a Python each, kept apart from everything else on the machine.

    a host of containers                       │ a sandbox (`bubblewrap` or `sandlock`)
    Containers ─> SandboxSession ── a socket ──┼─> warden ── a socket ──> kernel, and what its code starts
                                 <─ a pipe ────┼──────────────────────────  what they print

- `choosing` tries the sandboxes in turn with code that tries to get out; the first that holds is used. `launch` starts
  one, `sandboxes` are the two that there are.
- `containers` says whose a container is, how long it lives and how many there may be: `living` is one as its host knows
  it, and `session` its processes, spoken to. `cells` is what they say, `records` what others are told of it.
- `watching` sees that a container takes no more than it may, and that nothing runs in it between calls; `disk` and
  `processes` are what it takes. `checkpoints` keeps the files of those that rest, on disk.
- `sharing` has the containers of all hosts: processes of their own, which web workers ask, or the worker itself.
  `hosts` lists what a host does, a line each, with both sides of that; between them is a `channel`.
- `inside/respsite_kernel` are our programs in there, on the standard library alone: the container's Python runs them.
  The warden keeps the files and forks the kernel; the kernel runs the cells, under limits that it has taken itself.
- What code inside can do is deceive or kill both of them. So the host bounds, checks or ignores all that they say,
  watches memory and files from outside, and ends a sandbox that does not answer.
"""
