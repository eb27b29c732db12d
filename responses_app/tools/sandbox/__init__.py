"""Containers of the code interpreter: a Python each, kept apart from everything else on the machine.

    a host of containers                       │ a sandbox (`bubblewrap` or `sandlock`)
    Containers ─> SandboxSession ── a socket ──┼─> warden ── a socket ──> kernel, and what its code starts
                                 <─ a pipe ────┼──────────────────────────  what they print

- `choosing` tries the sandboxes in turn with `escapes`, code that tries to get out; the first that holds is used.
- `containers` says whose a container is, how long it lives and how many there may be; `session` is one that lives.
  `records` are what came of code in it, `disk` and `processes` what it takes.
- `sharing` has the containers of all hosts: processes of their own, which web workers ask, or the worker itself.
- `actions` lists what a host does, a line each; `asking` is the worker's side, `serving` the host's. Between them is
  a `channel`, many questions at once on a socket; `messages` are what goes over it, and its bounds.
- `living` is a container as `containers` knows it, and `kept_calls` its calls, which are made once; `checkpoints` keeps
  the files of those that rest, on disk.
- `inside/respsite_kernel` are our programs in there, on the standard library alone: the container's Python runs them.
  The warden keeps the files and forks the kernel; the kernel runs the cells, under limits that it has taken itself.
- What code inside can do is deceive or kill both of them. So the host bounds, checks or ignores all that they say,
  watches memory and files from outside, and ends a sandbox that does not answer.
- Between calls nothing runs: `stillness` freezes a container where that can be had, and sees whether all of it stands
  still.
"""
