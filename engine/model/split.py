"""How a module's weights can be split over ranks; a model says it by path, engine/parallel reads it."""

from typing import Literal

# "vocabulary"  a row for each token: rows are split
# "out"         a matrix whose outputs are split
# "in"          a matrix whose inputs are split, so that its results are parts of a sum
# "tokens"      works on each token alone: with sequence parallelism it gets a part of them
# "inside"      a module whose matrices are "out" and "in": its input is whole inside
# "mixture"     a module that sends tokens to experts: its input and output are whole
# "whole"       not split
Split = Literal["vocabulary", "out", "in", "tokens", "inside", "mixture", "whole"]
