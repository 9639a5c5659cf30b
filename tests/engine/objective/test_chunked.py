"""Chunked objectives against the dense computation, and the values that they skip."""

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from atelier.engine.config.base import Spec
from atelier.engine.config.error import ConfigError
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.objective.logits import Logits
from atelier.engine.objective import token_terms
from atelier.engine.objective.chunked import Mix, TeacherSide, objective_sums
from atelier.engine.objective.load import module_of
from atelier.engine.objective.top import answers_of, side_of
from atelier.engine.objective.vocab_slice import LogitCache, TokenDistribution
from tests.engine.product_shapes import ProductShapes

B, T, D, V = 3, 17, 12, 41
ONLY_LM: Mix = {"lm": (LM(), 1.0)}
WARM = Logits(temperature=2.0)
BOTH: Mix = {"lm": (LM(), 0.3), "logits": (WARM, 0.7)}
WITH_Z: Mix = {"lm": (LM(z_weight=0.05), 0.8), "logits": (WARM, 0.2)}
ONLY_KD: Mix = {"logits": (Logits(), 1.0)}


class Case:
    """Hidden states, a head, labels of which some are not scored, and a wider teacher."""

    def __init__(self, dtype: torch.dtype = torch.float64, *, vocab: int = V, scored: float = 0.7) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

        self.hidden = normal(B, T, D).requires_grad_()
        self.head = normal(vocab, D).requires_grad_()
        self.teacher = TeacherSide(
            normal(B, T, D + 4).requires_grad_(), normal(vocab, D + 4).requires_grad_()
        )
        self.labels = torch.randint(0, vocab, (B, T), generator=generator)
        self.labels[torch.rand(B, T, generator=generator) > scored] = -100

    def dense(self, mix: Mix) -> tuple[Tensor, dict[str, Tensor]]:
        """All logits at once, by the definitions."""
        scored = self.labels != -100
        logits = (self.hidden @ self.head.t())[scored]
        taught = (self.teacher.hidden_BTD @ self.teacher.head_weight_VD.t())[scored].detach()
        total, sums = torch.zeros((), dtype=logits.dtype), {}
        for name, (spec, share) in mix.items():
            if isinstance(spec, LM):
                sums[name] = -logits.log_softmax(-1).gather(1, self.labels[scored][:, None]).sum()
                sums[name] = sums[name] + spec.z_weight * (logits.exp().sum(-1).log() ** 2).sum()
            else:
                heat: float = spec.temperature  # type: ignore[attr-defined]
                q, p = (logits / heat).softmax(-1), (taught / heat).softmax(-1)
                sums[name] = heat**2 * (p * (p / q).log()).sum()
            total = total + share * sums[name]
        return total, sums

    def chunked(self, mix: Mix, **more: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return objective_sums(self.hidden, self.head, self.labels, mix, self.teacher, **more)

    def gradients(self, total: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(total, (self.hidden, self.head))


@pytest.mark.parametrize("mix", [ONLY_LM, ONLY_KD, BOTH, WITH_Z], ids=["lm", "logits", "both", "z"])
@pytest.mark.parametrize("chunk", [1, 5, 8, 1000, None])
def test_sums_and_gradients_equal_the_dense_computation(mix: Mix, chunk: int | None) -> None:
    case = Case()
    expected, each = case.dense(mix)
    total, sums = case.chunked(mix, chunk=chunk)
    assert total.dtype == torch.float64
    assert (total - expected).abs() < 1e-12 * expected.abs()
    for name in mix:
        assert (sums[name] - each[name]).abs() < 1e-12 * each[name].abs()
    for ours, theirs in zip(case.gradients(total / 7), case.gradients(expected / 7), strict=True):
        assert (ours - theirs).abs().max() < 1e-12


def test_the_cross_entropy_is_logged_even_where_it_is_not_trained() -> None:
    case = Case()
    total, sums = case.chunked(ONLY_KD)
    assert (sums["lm"] - case.dense(ONLY_LM)[1]["lm"]).abs() < 1e-11
    assert (total - sums["logits"]).abs() < 1e-12
    assert not any(value.requires_grad for value in sums.values())


@pytest.mark.parametrize("spec", [LM(), LM(z_weight=0.05), Logits(), WARM], ids=str)
def test_a_closed_form_equals_the_gradient_of_its_definition(spec: Spec) -> None:
    case, terms = Case(scored=1.0), module_of(spec)
    logits = (case.hidden @ case.head.t()).detach().flatten(0, 1)
    taught = torch.randn(logits.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    arguments = (spec, TokenDistribution(logits), case.labels.flatten(), TokenDistribution(taught))
    by_hand = terms.token_gradient(*arguments)
    derived = token_terms.derived_gradient(terms.token_loss, *arguments)
    for ours, theirs in zip(by_hand, derived, strict=True):
        assert (ours - theirs).abs().max() < 1e-12


def test_the_cross_entropy_beside_a_z_loss_is_logged_without_it() -> None:
    case = Case()
    total, sums = case.chunked({"lm": (LM(z_weight=0.05), 1.0)}, chunk=7, text="*")
    assert (sums["*"] - case.dense(ONLY_LM)[1]["lm"]).abs() < 1e-11
    assert sums["lm"] > sums["*"] + 1 and (total - sums["lm"]).abs() < 1e-11


def test_an_objective_without_a_closed_form_is_derived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(module_of(Logits()), "token_gradient")
    case = Case()
    expected, (total, _) = case.dense(BOTH)[0], case.chunked(BOTH, chunk=7)
    for ours, theirs in zip(case.gradients(total), case.gradients(expected), strict=True):
        assert (ours - theirs).abs().max() < 1e-12


def test_a_token_that_is_not_scored_has_no_gradient_and_no_influence() -> None:
    case = Case()
    hidden_grad, _ = case.gradients(case.chunked(BOTH)[0])
    scored = case.labels != -100
    assert (hidden_grad[~scored] == 0).all() and (hidden_grad[scored].abs().sum(-1) > 0).all()
    total = case.chunked(BOTH)[0].detach()
    with torch.no_grad():
        case.hidden[~scored] = float("nan")
        case.teacher.hidden_BTD[~scored] = float("nan")
    assert torch.equal(case.chunked(BOTH)[0].detach(), total)


def test_nothing_scored_gives_zero_and_zero_gradients() -> None:
    case = Case()
    case.labels.fill_(-100)
    total, sums = case.chunked(BOTH)
    assert total.item() == 0 and [value.item() for value in sums.values()] == [0, 0]
    assert all((gradient == 0).all() for gradient in case.gradients(total))


class Largest(TorchDispatchMode):
    """The most elements of any tensor that an operation returned, and how many products there were."""

    def __init__(self) -> None:
        super().__init__()
        self.elements, self.products = 0, 0
        self.results: list[Tensor] = []  # of products; kept, so that no memory is given out twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.mm.default, torch.ops.aten.mm.out):
            self.products += 1
            self.results.append(result)
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.elements = max([self.elements, *sizes])
        return result


def watched(compute: Callable[[], Any]) -> Largest:
    gc.disable()  # what it frees would be seen too
    try:
        with Largest() as seen:
            compute()
    finally:
        gc.enable()
    return seen


def test_what_a_teacher_says_is_computed_once_for_all_its_learners() -> None:
    case = Case(torch.float32)
    alone, products = case.gradients(case.chunked(BOTH, chunk=7)[0]), 0
    case.teacher = replace(case.teacher, logit_cache=LogitCache())
    for learner in range(3):
        seen = watched(lambda: case.gradients(case.chunked(BOTH, chunk=7)[0]))
        assert not learner or seen.products < products
        products = products or seen.products
        for ours, theirs in zip(case.gradients(case.chunked(BOTH, chunk=7)[0]), alone, strict=True):
            assert torch.equal(ours, theirs)


def test_a_teacher_whose_logits_nobody_compares_has_none() -> None:
    case = Case()
    with_teacher = watched(lambda: case.chunked(ONLY_LM)).products
    without = watched(lambda: objective_sums(case.hidden, case.head, case.labels, ONLY_LM, None)).products
    assert with_teacher == without


@pytest.mark.parametrize("mix", [ONLY_LM, BOTH], ids=["lm", "both"])
def test_no_tensor_is_larger_than_a_chunk_of_logits(mix: Mix) -> None:
    tokens, vocab, wide = 128, 16_000, 8
    hidden = torch.randn(2, tokens // 2, wide, requires_grad=True)
    head = torch.randn(vocab, wide, requires_grad=True)
    teacher = TeacherSide(torch.randn(2, tokens // 2, wide), torch.randn(vocab, wide))
    labels = torch.randint(0, vocab, (2, tokens // 2))
    chunks = watched(lambda: objective_sums(hidden, head, labels, mix, teacher, 32)[0].backward())
    assert chunks.elements == 32 * vocab
    dense = watched(lambda: F.cross_entropy(hidden.flatten(0, 1) @ head.t(), labels.flatten()).backward())
    assert dense.elements == tokens * vocab


def test_the_logits_of_all_chunks_lie_in_the_same_memory_unless_they_are_kept() -> None:
    case = Case()

    def places(logit_cache: LogitCache | None) -> int:
        seen = watched(
            lambda: objective_sums(
                case.hidden, case.head, case.labels, ONLY_LM, chunk=7, logit_cache=logit_cache
            )
        )
        return len({each.data_ptr() for each in seen.results if each.shape[1] == V})

    assert places(None) == 1
    assert places(LogitCache()) > 1


def test_only_the_products_that_are_needed_are_computed() -> None:
    case = Case()

    def products(mix: Mix) -> int:
        return watched(lambda: objective_sums(case.hidden, case.head, case.labels, mix, None)).products

    assert products(ONLY_LM) == 3  # logits, and the gradients of hidden states and head
    case.head.requires_grad_(False)
    assert products(ONLY_LM) == 2
    with torch.no_grad():
        assert products(ONLY_LM) == 1


def test_no_gradient_reaches_the_teacher() -> None:
    case = Case()
    case.chunked(BOTH)[0].backward()
    assert case.teacher.hidden_BTD.grad is None and case.teacher.head_weight_VD.grad is None


def test_bf16_autocast_is_near_fp32_with_fp32_sums_and_gradients() -> None:
    case = Case(torch.float32)
    exact, _ = case.chunked(BOTH)
    expected = case.gradients(exact)
    with torch.autocast("cpu", torch.bfloat16):
        rough, sums = case.chunked(BOTH)
    assert rough.dtype == sums["lm"].dtype == torch.float32
    assert abs(rough - exact) < 0.01 * exact and rough != exact
    for ours, theirs in zip(case.gradients(rough), expected, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).abs().mean() < 0.03 * theirs.abs().mean()


def test_products_of_low_precision_have_few_shapes_however_many_tokens_are_scored() -> None:
    """A shape that oneDNN has not met costs it more than the product."""
    seen = ProductShapes()
    case = Case(torch.float32)
    with torch.autocast("cpu", torch.bfloat16), seen:
        for scored in range(20, B * T):
            case.labels[:] = 0
            case.labels.view(-1)[scored:] = -100
            total, _ = objective_sums(case.hidden, case.head, case.labels, BOTH, case.teacher, 20)
            total.backward()
    assert 4 <= len(seen.shapes) <= 2 * 4  # chunks of 16 and 32 rows


def test_a_second_backward_is_refused() -> None:
    total, _ = Case().chunked(ONLY_LM)
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="call it again"):
        total.backward()


def test_a_teacher_of_another_vocabulary_is_refused() -> None:
    case = Case()
    other = TeacherSide(case.teacher.hidden_BTD, torch.zeros(V + 1, D + 4, dtype=torch.float64))
    with pytest.raises(ConfigError, match=f"vocabulary has {V + 1} tokens, the student's {V}"):
        objective_sums(case.hidden, case.head, case.labels, BOTH, other)


def test_a_teacher_of_another_vocabulary_whose_logits_nobody_compares_changes_nothing() -> None:
    case = Case()
    other = TeacherSide(case.teacher.hidden_BTD, torch.zeros(V + 1, D + 4, dtype=torch.float64))
    found, alone = (
        objective_sums(case.hidden, case.head, case.labels, ONLY_LM, teacher)[0] for teacher in (other, None)
    )
    assert torch.equal(found, alone)


def test_distillation_without_a_teacher_is_refused() -> None:
    case = Case()
    with pytest.raises(ConfigError, match="has no teacher"):
        objective_sums(case.hidden, case.head, case.labels, BOTH, None)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # torch's compiler makes and hides warnings of its own
def test_compiled_equals_eager_and_compiles_once_for_chunks_of_any_length() -> None:
    torch._dynamo.utils.counters.clear()
    case = Case()
    for scored in (50, 44, 31, 7):
        case.labels.flatten()[scored:] = -100
        eager, compiled = case.chunked(BOTH), case.chunked(BOTH, compiled=True)
        assert (eager[0] - compiled[0]).abs() < 1e-12 * eager[0].abs()
        for ours, theirs in zip(case.gradients(compiled[0]), case.gradients(eager[0]), strict=True):
            assert (ours - theirs).abs().max() < 1e-12
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


ROWS = 5  # of padding


def padded(case: Case, *, fill: float = 3.0) -> Case:
    """The same with rows of padding, which would have much of the mass."""
    generator = torch.Generator().manual_seed(2)
    wider = Case()
    more = fill * torch.randn(ROWS, D, generator=generator, dtype=torch.float64)
    wider.head = torch.cat([case.head.detach(), more]).requires_grad_()
    theirs = case.teacher.head_weight_VD.detach()
    more = fill * torch.randn(ROWS, D + 4, generator=generator, dtype=torch.float64)
    wider.teacher = replace(case.teacher, head_weight_VD=torch.cat([theirs, more]))
    return wider


@pytest.mark.parametrize("chunk", [5, None])
def test_rows_of_padding_have_no_mass_in_a_comparison_and_no_gradient_from_it(chunk: int | None) -> None:
    case = Case()
    expected, each = case.dense(ONLY_KD)
    wanted = case.gradients(expected)
    wider = padded(case)
    total, sums = wider.chunked(ONLY_KD, chunk=chunk, ids=V)
    assert (sums["logits"] - each["logits"]).abs() < 1e-12 * each["logits"].abs()
    hidden, head = wider.gradients(total)
    assert (hidden - wanted[0]).abs().max() < 1e-12 and (head[:V] - wanted[1]).abs().max() < 1e-12
    assert (head[V:] == 0).all()


def test_the_cross_entropy_beside_a_comparison_has_all_rows() -> None:
    wider = padded(Case())
    _, sums = wider.chunked(BOTH, ids=V)
    assert (sums["lm"] - wider.dense(ONLY_LM)[1]["lm"]).abs() < 1e-11
    assert (sums["logits"] - Case().dense({"logits": (WARM, 1.0)})[1]["logits"]).abs() < 1e-11


def test_an_objective_without_a_closed_form_does_without_padding_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(module_of(Logits()), "token_gradient")
    case = Case()
    wider = padded(case)
    found = wider.gradients(wider.chunked({"logits": BOTH["logits"]}, ids=V)[0])
    wanted = case.gradients(case.dense({"logits": BOTH["logits"]})[0])
    assert (found[0] - wanted[0]).abs().max() < 1e-12 and (found[1][V:] == 0).all()


@pytest.mark.parametrize("top", [8, V])
def test_answers_leave_padding_out_on_both_sides(top: int) -> None:
    case = Case()
    wider = padded(case)
    sums = []
    for one, ids in ((case, None), (wider, V)):
        side = case.teacher if one is case else wider.teacher
        head_VD = side.head_weight_VD.detach()[:V]
        sent = answers_of(side.hidden_BTD.detach(), head_VD, case.labels, top=top, values="exact")
        heard = side_of(sent, case.labels, vocab=V, values="exact", place="here")
        _, found = objective_sums(one.hidden, one.head, one.labels, ONLY_KD, heard, ids=ids)
        sums.append(found["logits"])
    assert (sums[0] - sums[1]).abs() < 1e-12 * sums[0].abs()


def test_the_head_s_gradient_in_16_bits_is_as_exact_in_64_chunks_as_in_one() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(4, 256, 32, generator=generator).bfloat16()
    head = (torch.randn(256, 32, generator=generator) * 0.3).bfloat16()
    labels = torch.randint(0, 256, (4, 256), generator=generator)

    def gradient(dtype: torch.dtype, chunk: int) -> Tensor:
        weight = head.detach().clone().to(dtype).requires_grad_()
        objective_sums(hidden.to(dtype), weight, labels, ONLY_LM, chunk=chunk)[0].backward()
        assert weight.grad is not None and weight.grad.dtype == dtype
        return weight.grad.double()

    exact = gradient(torch.float64, 1024)
    one, many = ((gradient(torch.bfloat16, chunk) - exact).norm() / exact.norm() for chunk in (1024, 16))
    assert one < 0.004 and many < 1.2 * one
