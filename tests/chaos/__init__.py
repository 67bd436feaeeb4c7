"""Chaos: real processes on real servers, killed, paused, stopped and resharded under load.

Read the files in this order: `book.py` (what is written down), `service.py` and `producer.py` (the
processes), `script.py` (what happens to them, from a seed), `fleet.py` (carries it out), `checks.py`
(what must be true of it afterwards), `traffic.py` (records put and handled), `report.py` (tables),
`run.py` (a run, from start to verdict).
"""
