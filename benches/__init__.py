"""Benchmarks of ruststream-kinesis. Run them with `python -m benches`; see README.md here."""
