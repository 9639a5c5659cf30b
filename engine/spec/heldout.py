"""What a held-out loss was measured on, by a name: losses of different held-out sets are not compared."""

from collections.abc import Mapping

DIGITS = 12  # of a fingerprint


def held_out_name(windows: Mapping[str, int], sequence: int) -> str:
    """Of the first so many windows of the held-out split of each tokens artifact, by fingerprint; '' for
    none.
    """
    counts = {source[:DIGITS]: count for source, count in sorted(windows.items()) if count}
    if not counts:
        return ""
    if len(counts) == 1:
        of = next(iter(counts))
    else:
        of = " + ".join(f"{source} ({count})" for source, count in counts.items())
    return f"{sum(counts.values())} windows of {sequence} tokens of {of}"


def scored_name(tokens: str, num_tokens: int, sequence: int) -> str:
    """Of the first so many tokens of the held-out split of a tokens artifact, in windows of `sequence`."""
    return f"{num_tokens} tokens in windows of {sequence} of {tokens[:DIGITS]}"
