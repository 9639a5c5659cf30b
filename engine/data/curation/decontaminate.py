"""The task `decontaminate`: find word n-grams of evaluation questions in the documents of all sources, and
cut them out (MT-NLG 530B, 2201.11990, section 3.1).

Pass 1: find and count the n-grams. Pass 2: cut all that are not common in the corpus.
"""

NAMED = 5  # questions named by a verdict
DROPPED = "overlap_pieces"
