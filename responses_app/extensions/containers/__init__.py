"""Containers: code of models, commands of their shells and programs, run in sandboxes, with an API of their own.

- `apps` says what the extension brings, `settings` what operators set.
- `tools` makes the tools where a request first needs one: `code_interpreter`, `shell`, `programs`; `contents` are the
  files and skills that requests give a container.
- `endpoints` are `/v1/containers`.
- `making` makes containers as the settings say; `keeper` has a host of them beside `respsite serve`, and `command` is
  that host, `respsite sandboxes`; `doctor` looks whether they can be used.
- `sandbox/` are the containers themselves, `egress/` is their way to the network.
"""
