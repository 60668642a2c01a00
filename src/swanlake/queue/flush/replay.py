"""A dead letter becomes a segment again, for the table that has its name now."""

from __future__ import annotations

from dataclasses import dataclass

from swanlake.errors import InvalidRequest
from swanlake.lake.layout import Column, folded
from swanlake.queue.dead_letters import DeadLetter, DeadLetters
from swanlake.queue.segment import Header, Segment, SegmentDamaged, nested_columns
from swanlake.queue.store import SegmentFile, Store
from swanlake.queue.targets import Target


@dataclass(frozen=True)
class Replay:
    """What became of a dead letter."""

    letter: DeadLetter
    #: Why it stays a dead letter; None if it does not.
    refused: str | None = None


def check_replayable(letter: DeadLetter) -> None:
    """Raises if there is nothing in a letter that could be replayed."""
    if not letter.replayable:
        raise InvalidRequest(
            f"The dead letter {letter.segment_id} holds damaged bytes and no rows to replay.",
            identifier="NOT_REPLAYABLE",
        )


def replayed(letter: DeadLetter, letters: DeadLetters, target: Target, store: Store) -> SegmentFile:
    """Writes the segment; the letter can go then."""
    check_replayable(letter)
    try:
        content = letters.open(letter)
    except SegmentDamaged as damaged:
        raise InvalidRequest(
            f"The dead letter {letter.segment_id} cannot be read: {damaged}.",
            identifier="NOT_REPLAYABLE",
        ) from damaged
    header = Header(content.header.id, target.table, content.header.created_at)
    schema = header.schema(content.schema, _columns(content, target))
    named = [batch.ingest for batch in content.batches]
    segment = store.write_sealed(header, schema, zip(content.record_batches(), named, strict=True))
    letters.put_rest(letter, content)
    return segment


def _columns(content: Segment, target: Target) -> list[Column]:
    """What the columns are in the target: what they were, or in another table those so named."""
    if content.header.table == target.table:
        return nested_columns(content.schema)
    by_name = {folded(column.name): column for column in target.layout.columns}
    unknown = [name for name in content.schema.names if folded(name) not in by_name]
    if unknown:
        raise InvalidRequest(
            f"The table {target.table.full_name} has no column {unknown[0]}, and the dead letter "
            f"{content.header.id} has values for it. Add the column to replay it.",
            identifier="NOT_REPLAYABLE",
        )
    # Without what is below them: there too, names decide.
    return [Column(by_name[folded(name)].id, name, "") for name in content.schema.names]
