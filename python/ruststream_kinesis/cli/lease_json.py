"""A lease row as the commands print it with `--json`; the field names are documented."""

from __future__ import annotations

from ruststream_kinesis.cli.lease_view import LeaseLine

__all__ = ["lease_as_json"]


def lease_as_json(line: LeaseLine | None) -> dict[str, object]:
    """The row's fields; all of them `None` where there is no row."""
    state = None if line is None else line.state
    moved = None if state is None else state.resume_from
    return {
        "owner_id": None if line is None else line.owner_id,
        "alive": None if line is None else line.alive,
        "renewed_ago_seconds": None
        if line is None or line.renewed_ago is None
        else round(line.renewed_ago, 3),
        "checkpoint": None if state is None else state.checkpoint,
        "resume_from": None if moved is None else moved.to_text(),
        "problem": None if line is None else line.problem,
    }
