"""The test suite.

A regular package, so that a stray `tests` package in somebody's site-packages cannot shadow it.
"""
