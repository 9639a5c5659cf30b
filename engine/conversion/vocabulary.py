"""Replace the tokenizer (engine/config/conversion/vocabulary.py). With a tied head, lowering a new token's
logit also moves its embedding, only along that direction.

V old and W new tokens, D hidden
"""

from functools import partial

import torch
from torch import Tensor

from atelier.engine.config.conversion.vocabulary import ToVocabulary
from atelier.engine.config.error import ConfigError
from atelier.engine.config.registry import ModelSpec
from atelier.engine.conversion.contract import Converted, Parent, WeightPiece, copied, new
from atelier.engine.data.vocabulary import Vocabulary

ROWS = ("embed.weight", "head.weight")
RIDGE = 1e-3  # of the mean square of a number of a hidden state


def convert(rule: ToVocabulary, parent: Parent, made: ModelSpec) -> Converted:
    """The model with rows for the new tokenizer's tokens."""
    if parent.old is None or parent.new is None:
        raise ConfigError("convert", "needs another tokenizer", "tokenizer.extend or tokenizer.load")
    spelled = spelling(parent.old, parent.new)
    same = sum(len(ids) == 1 and is_same for ids, is_same in spelled)
    derived = sum(bool(ids) and not is_same for ids, is_same in spelled)
    lower_D = lowering(rule, parent) if rule.against else None
    found = Converted()
    for name, shape in made.shapes().items():
        if name not in ROWS:
            found.keep(name, parent)
            continue
        is_head = name == "head.weight" or "head.weight" not in made.shapes()
        make = partial(_rows, rule, parent, name, spelled, lower_D if is_head else None)
        whole = len(spelled)
        pieces = [copied(name, same / whole)]
        if derived:
            pieces.append(WeightPiece(name, derived / whole, f"rows of new tokens: {rule.rows}"))
        if rest := whole - same - derived:
            pieces.append(new("rows of new tokens", rest / whole))
        found.add(name, shape, parent.weights[name].dtype, make, *pieces)
    found.about = {
        "tokens_kept": same,
        "tokens_new": len(spelled) - same,
        "tokens_dropped": len(set(parent.old.names()) - set(parent.new.names()) - {b""}),
        "is_exact": False,
    }
    return found


def spelling(old: Vocabulary, new: Vocabulary) -> list[tuple[list[int], bool]]:
    """For each new id, the old ids that spell it, and whether it is the same token."""
    known = {name: number for number, name in enumerate(old.names()) if name}
    ids = {old.token(number): number for number in range(old.size)}
    found: list[tuple[list[int], bool]] = []
    for number, (name, spelled) in enumerate(zip(new.names(), new.spellings(), strict=True)):
        token = new.token(number)
        if name in known:
            found.append(([known[name]], True))
            continue
        try:
            text = spelled.decode()
        except UnicodeDecodeError:  # a partial character: spell its bytes
            found.append(([ids[each] for each in token if each in ids], False))
            continue
        found.append((old.encode(text), False))
    return found


@torch.no_grad()
def lowering(rule: ToVocabulary, parent: Parent) -> Tensor:
    """[D] what is added to a new row: it lowers the logit by `against` at the mean of the last hidden states,
    as the head reads them. `evenly`: of all such directions the one with the least variance over the states,
    C^-1 m / (m' C^-1 m) for mean m and second moments C.
    """
    model, total, moments, count = parent.model(), None, None, 0
    for batch in parent.text:
        hidden_ND = model(dict(batch)).hidden[batch["documents_BT"] >= 0].double().cpu()
        total = hidden_ND.sum(0) if total is None else total + hidden_ND.sum(0)
        moments = hidden_ND.T @ hidden_ND + (0 if moments is None else moments)
        count += len(hidden_ND)
    if total is None or moments is None:
        raise ConfigError("convert.against", "needs training text", "or convert.against=0")
    mean_D, moments_DD = total / count, moments / count
    along_D = mean_D
    if rule.lowered == "evenly":
        ridge = RIDGE * moments_DD.diagonal().mean()
        along_D = torch.linalg.solve(moments_DD + ridge * torch.eye(len(mean_D)), mean_D)
    return -rule.against * (along_D / (along_D @ mean_D)).float()


def _rows(
    rule: ToVocabulary,
    parent: Parent,
    name: str,
    spelled: list[tuple[list[int], bool]],
    lower_D: Tensor | None,
) -> Tensor:
    """[W, D]."""
    old_VD = parent.weights[name]
    all_D = old_VD[: parent.spec.ids].float().mean(0)
    rows_WD = torch.empty(len(spelled), old_VD.shape[1], dtype=old_VD.dtype)
    for number, (ids, is_same) in enumerate(spelled):
        if is_same:
            rows_WD[number] = old_VD[ids[0]]
            continue
        row_D = torch.zeros_like(all_D)
        if rule.rows != "zeros":
            row_D = old_VD[ids].float().mean(0) if rule.rows == "pieces" and ids else all_D
        if lower_D is not None:
            row_D = row_D + lower_D
        rows_WD[number] = row_D.to(old_VD.dtype)
    return rows_WD
