"""`respsite serve --workers N`: one process that serves nothing, and N that do.

The supervisor binds the address once and hands the socket to each worker, a process that is started anew (nothing is
forked: an event loop, a database connection or a thread would not survive that). So the port is there from the first
moment to the last, whoever dies in between, and what nobody has accepted yet waits for whoever lives.

`fleet` decides which worker is to be started and stopped, and knows neither processes nor time; `processes` starts,
asks and ends them; `supervisor` brings both together, with the signals; `worker` is what runs in a worker.

Three pipes lead from one to the other. Of each worker: its output, which the supervisor hands on line by line with the
worker's number before it, and one byte that says that it is ready (asking over HTTP would reach any worker). Of all
workers: one in which nothing is ever written. The supervisor holds its other end, which the kernel closes when the
supervisor dies, whatever kills it: the workers read the end of it, stop accepting, and stop.
"""
