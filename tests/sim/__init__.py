"""Whole fleets of instances in virtual time, from one seed: the real code, no sockets, no threads.

`python -m tests.sim --help`. What is simulated: time, event loops, the network, Kinesis, the table
behind the lease store. What is real: everything of the package above `Transport` and `LeaseStore`.
"""
