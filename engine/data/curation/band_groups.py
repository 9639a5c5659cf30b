"""List the documents that share MinHash band keys, in the memory of the keys.

Shape letters: N documents, B bands.
"""

import numpy as np

from atelier.engine.config.error import DataError
from atelier.engine.data.curation.minhash import NO_BAND

LISTED = 256  # documents of one key that are listed; later ones are counted
MOST = (1 << 31) - 1  # documents
_ALONE = _FREE = -1


class BandGroups:
    """For each band, the documents added so far under each key.

    The two halves of each 64-bit key are overwritten: the first with the place where its group's list begins
    (int32; -1 if no other document has the key), the second with the lists of all groups of the band. A list
    is as long as its group: a counter, then members. There is no cell for the last document of a group, which
    nobody looks up.
    """

    def __init__(self, bands_NB: np.ndarray, is_member_N: np.ndarray) -> None:
        """Overwrites `bands_NB` (uint64, C order, writable), a band at a time; the others' memory is 40 bytes
        a document. Documents outside `is_member_N` are in no group. Raises DataError.
        """
        number = len(bands_NB)
        if bands_NB.dtype != np.uint64 or not (bands_NB.flags.c_contiguous and bands_NB.flags.writeable):
            raise DataError("bands: the keys are no writable array of uint64 in C order; give a copy of them")
        if number > MOST:
            raise DataError(f"bands: {number} documents; at most {MOST} are compared at once")
        self._cells: np.ndarray = bands_NB.view(np.int32)  # [N, 2 B]
        self.is_shared_N = np.zeros(number, dtype=bool)  # whether a document shares a key
        for band in range(bands_NB.shape[1]):
            self._build(bands_NB[:, band].copy(), is_member_N, band)

    def _build(self, keys_N: np.ndarray, is_member_N: np.ndarray, band: int) -> None:
        self._cells[:, 2 * band] = _ALONE
        self._cells[:, 2 * band + 1] = _FREE
        members = np.flatnonzero(is_member_N & (keys_N != NO_BAND)).astype(np.int32)
        keys = keys_N[members]
        order = np.argsort(keys)
        keys, members = keys[order], members[order]
        begins = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])[: len(keys)])
        sizes = np.diff(np.append(begins, len(keys)))
        starts = np.repeat(begins, sizes)
        is_shared = np.repeat(sizes > 1, sizes)
        self._cells[begins, 2 * band + 1] = 0
        self._cells[members[is_shared], 2 * band] = starts[is_shared]
        self.is_shared_N[members[is_shared]] = True

    def found(self, document: int) -> tuple[np.ndarray, int]:
        """The names under which documents with a key of this one were added: those that share most bands
        first, then in ascending order. And the number of documents that were not listed, once for each band.
        """
        lists, left_out = [], 0
        for band, start in enumerate(self._cells[document, ::2].tolist()):
            if start == _ALONE:
                continue
            cells = self._cells[:, 2 * band + 1]
            if count := int(cells[start]):
                listed = min(count, LISTED)
                lists.append(cells[start + 1 : start + 1 + listed])
                left_out += count - listed
        if not lists:
            return np.zeros(0, dtype=np.int32), 0
        names, bands = np.unique(np.concatenate(lists), return_counts=True)
        return names[np.argsort(-bands, kind="stable")], left_out

    def add(self, document: int, name: int) -> None:
        """Add a document under a name (below 2^31) to the lists of its keys."""
        for band, start in enumerate(self._cells[document, ::2].tolist()):
            if start == _ALONE:
                continue
            cells = self._cells[:, 2 * band + 1]
            count, place = int(cells[start]), start + 1 + int(cells[start])
            # the cell behind a full list is the counter of the next group: the last of a group needs none
            if count < LISTED and place < len(cells) and cells[place] == _FREE:
                cells[place] = name
            cells[start] = count + 1
