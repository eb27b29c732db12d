"""The way out of containers that have an allowlist: a proxy of this server's, outside of their sandbox.

    a sandbox: a network of its own, with 127.0.0.1 alone   │ the process that has the container
    curl, urllib ──> 127.0.0.1:3128, a socket that ─────────┼─> ContainerProxy ── checked, dialled ──> a host
                     the warden made and gave away          │

- The socket that listens lies in the container's network, and the process outside has it: nothing else of the outside
  can be reached, and no container reaches another one's.
- `policy` is what a container may reach, with its secrets.
- `proxies` has the proxy of each container, with the certificates that it needs; `connections` is what it does with one
  connection, `tunnels` what it passes on unread, `peers` how it reaches a host and speaks HTTP with both sides.
- `secrets` puts values in the place of what stands for them inside, and takes them out of answers.
"""
