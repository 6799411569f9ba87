"""The plan: which parameters of which modules, along which dims, and why the others are left alone."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import equations
import gradcent
from gradcent import Layout, Plan, explain
from module_zoo import KINDS, LEFT_ALONE


def entry(model: nn.Module, name: str, **options):
    plan = explain(model, **options)
    return next(each for each in plan.entries if each.name == name)


def layouts(model: nn.Module, **options) -> dict[str, Layout | None]:
    return {each.name: each.layout for each in explain(model, **options).entries}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_the_weight_vectors_its_definition_says(kind: str) -> None:
    """Marked one by one: the k-th weight vector filled with k must be constant in exactly the plan's vectors."""
    model = KINDS[kind]()
    plan = explain(model, min_length=2)
    some = False
    for parameter, find in equations.finders(model):
        wanted = find(parameter.detach())
        layout = plan.layout(parameter)
        assert (layout is not None) == bool(wanted)
        if layout is None:
            assert plan.entry(parameter).reason
            continue
        some = True
        assert layout.count == len(wanted)
        assert layout.length == wanted[0].numel()
        marked = torch.zeros(parameter.shape, dtype=torch.float64)
        for number, vector in enumerate(find(marked)):
            vector.fill_(number)
        view = marked.reshape(layout.shape).permute(0, 2, 1, 3).flatten(2).flatten(0, 1)
        assert bool((view == view[:, :1]).all())
        assert sorted(view[:, 0].tolist()) == list(range(len(wanted)))
    assert some


@pytest.mark.parametrize("kind", LEFT_ALONE)
def test_what_is_left_alone_has_a_reason(kind: str) -> None:
    plan = explain(nn.Sequential(LEFT_ALONE[kind]()))
    assert plan.entries
    for each in plan.entries:
        assert each.layout is None
        assert each.reason


def test_the_designs_table_of_layouts() -> None:
    assert layouts(nn.Linear(3, 2))["weight"] == Layout(1, 1, 2, 3)
    assert layouts(nn.Conv2d(8, 6, 3, groups=2))["weight"] == Layout(1, 1, 6, 36)
    assert layouts(nn.Bilinear(3, 4, 5))["weight"] == Layout(1, 1, 5, 12)
    assert layouts(nn.ConvTranspose2d(8, 6, 3, groups=2))["weight"] == Layout(2, 4, 3, 9)
    assert layouts(nn.MultiheadAttention(6, 2))["in_proj_weight"] == Layout(1, 1, 18, 6)
    assert layouts(nn.LSTM(3, 4))["weight_ih_l0"] == Layout(1, 1, 16, 3)


def test_reasons_say_what_is_the_matter() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cls_token = nn.Parameter(torch.zeros(1, 1, 6))
            self.pos_embed = nn.Parameter(torch.zeros(1, 5, 6))
            self.gamma = nn.Parameter(torch.ones(6))
            self.norm = nn.LayerNorm([5, 6])
            self.one = nn.Linear(1, 4)
            self.attention = nn.MultiheadAttention(6, 2, add_bias_kv=True)
            self.head = nn.Linear(6, 2)
            self.scaled = nn.utils.parametrizations.weight_norm(nn.Linear(6, 2))

    net = Net()
    net.head.requires_grad_(False)
    for name, words in {
        "cls_token": "Net",
        "pos_embed": "Net",
        "gamma": "single vector",
        "norm.weight": "normalization",
        "one.weight": "length 1",
        "attention.bias_k": "bias",
        "head.bias": "bias",
        "head.weight": "frozen",
        "scaled.parametrizations.weight.original0": "magnitude",
    }.items():
        assert words in entry(net, name).reason, name
    assert entry(net, "head.weight").reason == "frozen now; centralized once it is trained"
    assert entry(net, "head.weight", overrides={"head.*t": "rows"}).reason.startswith(
        "override 'head.*t'; frozen"
    )
    net.one.in_features, net.one.out_features, net.one.weight = 4, 0, nn.Parameter(torch.zeros(0, 4))
    assert entry(net, "one.weight").reason == "has no elements"
    assert entry(net, "head.weight").layout is not None
    assert not entry(net, "head.weight").centralized


@pytest.mark.parametrize(
    ("parent", "sizes", "words"),
    [
        (nn.Linear, (4, 4), "not the weight of its Own"),
        (nn.MultiheadAttention, (4, 2), "not a projection of its Own"),
        (nn.LSTM, (4, 4), "not a weight of its Own"),
    ],
)
def test_what_a_subclass_adds_is_not_its_parents_weight(parent, sizes, words) -> None:
    model = type("Own", (parent,), {})(*sizes)
    model.register_parameter("extra", nn.Parameter(torch.zeros(4, 4)))
    assert entry(model, "extra").reason == words


def test_lazy_modules_before_and_after_they_have_a_shape() -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(3))
    with pytest.raises(ValueError, match=r"0\.weight of lazy .* run one forward pass"):
        explain(model)
    model(torch.zeros(1, 2, 5, 5))
    assert layouts(model)["0.weight"] == Layout(1, 1, 4, 18)
    assert layouts(model)["2.weight"] == Layout(1, 1, 3, 36)


class Standardized(nn.Module):
    """Weight standardization as a parametrization."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        flat = weight.flatten(1)
        return ((flat - flat.mean(1, keepdim=True)) / (flat.std(1, keepdim=True) + 1e-5)).view_as(weight)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
@pytest.mark.parametrize("make", [lambda: nn.Conv2d(4, 6, 3), lambda: nn.ConvTranspose2d(4, 6, 3, groups=2)])
def test_parametrized_weights_take_the_layout_of_their_layer(make) -> None:
    want = layouts(make())["weight"]
    found = layouts(nn.utils.parametrizations.weight_norm(make()))
    assert found["parametrizations.weight.original1"] == want
    assert found["parametrizations.weight.original0"] is None
    assert found["bias"] is None
    found = layouts(nn.utils.weight_norm(make()))
    assert found["weight_v"] == want
    assert found["weight_g"] is None
    assert (
        layouts(nn.utils.parametrizations.spectral_norm(make()))["parametrizations.weight.original"] == want
    )
    with pytest.warns(FutureWarning) if spectral_norm_warns() else no_warning():
        old = nn.utils.spectral_norm(make())
    assert layouts(old)["weight_orig"] == want
    model = make()
    nn.utils.parametrize.register_parametrization(model, "weight", Standardized())
    assert layouts(model)["parametrizations.weight.original"] == want


def spectral_norm_warns() -> bool:
    import warnings

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        nn.utils.spectral_norm(nn.Linear(3, 2))
    return bool(said)


def no_warning():
    import contextlib

    return contextlib.nullcontext()


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
def test_parametrized_recurrent_and_attention_weights() -> None:
    lstm = nn.utils.parametrizations.weight_norm(nn.LSTM(3, 4), "weight_hh_l0")
    assert layouts(lstm)["parametrizations.weight_hh_l0.original1"] == Layout(1, 1, 16, 4)
    assert layouts(lstm)["parametrizations.weight_hh_l0.original0"] is None
    old = nn.utils.weight_norm(nn.LSTM(3, 4), "weight_ih_l0")
    assert layouts(old)["weight_ih_l0_v"] == Layout(1, 1, 16, 3)
    attention = nn.utils.parametrizations.spectral_norm(nn.MultiheadAttention(6, 2), "in_proj_weight")
    assert layouts(attention)["parametrizations.in_proj_weight.original"] == Layout(1, 1, 18, 6)


def test_tied_and_shared_weights() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7)
            self.head.weight = self.embed.weight
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
            self.two.weight = self.one.weight
            self.up, self.down = nn.Conv2d(4, 4, 1), nn.ConvTranspose2d(4, 4, 1)
            self.down.weight = self.up.weight

    model = Tied()
    plan = explain(model)
    assert len(plan.entries) == len(list(model.parameters()))
    tied = plan.entry(model.embed.weight)
    assert tied.layout is None
    assert "embedding" in tied.reason
    assert "head.weight" in tied.reason
    shared = plan.entry(model.one.weight)
    assert shared.layout == Layout(1, 1, 4, 4)
    assert "two.weight" in shared.reason
    torn = plan.entry(model.up.weight)
    assert torn.layout is None
    assert "differently" in torn.reason
    assert explain(model, overrides={"up.weight": "rows"}).layout(model.up.weight) == Layout(1, 1, 4, 4)
    assert explain(model, overrides={"down.weight": "columns"}).layout(model.up.weight) == Layout(1, 4, 4, 1)


def test_a_module_used_twice_counts_once() -> None:
    layer = nn.Linear(4, 4)
    assert len(explain(nn.Sequential(layer, nn.ReLU(), layer)).entries) == 2


def test_layers_select_by_kind_never_by_rank() -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.ConvTranspose2d(2, 3, 3), nn.Linear(4, 3), nn.LSTM(3, 4))
    conv, linear = layouts(model, layers="conv"), layouts(model, layers="linear")
    assert conv["0.weight"]
    assert conv["1.weight"]
    assert conv["2.weight"] is None
    assert conv["3.weight_hh_l0"] is None
    assert linear["0.weight"] is None
    assert linear["2.weight"]
    assert linear["3.weight_hh_l0"]
    with pytest.raises(ValueError, match='"all", "conv", "linear"'):
        explain(model, layers="conv2d")


def test_packed_weights_are_left_alone() -> None:
    """4-bit layers keep a packed uint8 tensor of another shape in `weight`; factored ones another shape."""
    packed = nn.Linear(8, 6)
    packed.weight = nn.Parameter(torch.zeros(24, 1, dtype=torch.uint8), requires_grad=False)
    assert "packed or factored" in entry(packed, "weight").reason
    same_shape = nn.Linear(8, 6)
    same_shape.weight = nn.Parameter(torch.zeros(6, 8, dtype=torch.int8), requires_grad=False)
    assert "int8" in entry(same_shape, "weight").reason
    factored = nn.Conv2d(4, 4, 3)
    factored.weight = nn.Parameter(torch.zeros(36, 4))
    assert "packed or factored" in entry(factored, "weight").reason
    conv1d = type("Conv1D", (nn.Module,), {"nf": 4})()
    conv1d.weight = nn.Parameter(torch.zeros(24, 3))
    assert "packed or factored" in entry(conv1d, "weight").reason


def test_tensors_that_belong_to_no_module() -> None:
    centralized, left, bias = torch.zeros(4, 3), torch.zeros(4, 3), torch.zeros(4, 1)
    rows = Layout.rows((4, 3))
    plan = Plan.of_tensors({"a": (centralized, rows), "b": (left, None), "c": (bias, Layout.rows((4, 1)))})
    assert [plan.layout(each) for each in (centralized, left, bias)] == [rows, None, None]
    assert "length 1" in plan.entries[2].reason
    with pytest.raises(TypeError, match=r"w must be a pair \(tensor, layout\), got tuple"):
        Plan.of_tensors({"w": (left, rows, 1)})
    with pytest.raises(ValueError, match="12 elements"):
        Plan.of_tensors({"w": (torch.zeros(4, 4), rows)})


class Mixed(nn.Module):
    """A known matrix and one of an unknown module."""

    def __init__(self, known: tuple[int, int], own: tuple[int, ...]) -> None:
        super().__init__()
        self.known, self.own = nn.Linear(*known, bias=False), nn.Parameter(torch.zeros(own))


@pytest.mark.parametrize(
    ("known", "own", "share"),
    [
        ((12, 33), (2, 2), None),  # exactly 1 %
        ((12, 32), (2, 2), "1.0%"),
        ((5, 4), (2, 40), "80.0%"),
        ((5, 4), (1, 1, 40), None),  # a class token
        ((5, 4), (40,), None),
    ],
)
def test_matrices_of_unknown_modules_are_reported_above_one_percent(known, own, share) -> None:
    model = Mixed(known, own)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if share is None:
        gradcent.attach(optimizer, model)
    else:
        with pytest.warns(UserWarning, match=rf"gradcent: {share} of .* \(1 tensor, of Mixed\)"):
            gradcent.attach(optimizer, model)
        model.own.requires_grad_(False)
        gradcent.attach(gradcent.detach(optimizer), model)


@pytest.mark.parametrize(
    ("kinds", "shown"), [(4, "Own0, Own1, Own2, Own3"), (5, "Own0, Own1, Own2, Own3 and 1 more")]
)
def test_at_most_four_unknown_modules_are_named(kinds: int, shown: str) -> None:
    model = nn.ModuleList([type(f"Own{index}", (Mixed,), {})((3, 3), (4, 4)) for index in range(kinds)])
    with pytest.warns(UserWarning, match=rf"\({kinds} tensors, of {shown}\)"):
        gradcent.attach(torch.optim.SGD(model.parameters(), lr=0.1), model)


@pytest.mark.parametrize(
    ("other", "name"), [(nn.Sequential(nn.Linear(4, 5)), "shape"), (nn.Linear(4, 3), "names")]
)
def test_a_plan_of_another_model_is_refused(other: nn.Module, name: str) -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(ValueError, match=r"none of the optimizer.s tensors is a parameter"):
        gradcent.attach(torch.optim.SGD(model.parameters(), lr=0.1), model, plan=explain(other))


def test_several_models_in_one_plan() -> None:
    plan = explain([nn.Linear(3, 2), nn.Linear(4, 2)])
    assert [each.name for each in plan.entries] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    with pytest.raises(TypeError, match=r"nn\.Module"):
        Plan.of([nn.Linear(3, 2), "other"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"nn\.Module"):
        Plan.of(nn.Linear(3, 2).weight)  # type: ignore[arg-type]


def test_names_are_those_the_user_knows() -> None:
    """torch.compile and DDP put words into names; a module that the user called `module` keeps its name."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(3, 2)

    assert [each.name for each in explain(Net()).entries] == ["module.weight", "module.bias"]
    compiled = torch.compile(nn.Sequential(nn.Linear(3, 2)))
    assert [each.name for each in explain(compiled).entries] == ["0.weight", "0.bias"]
    parallel = nn.DataParallel(nn.Sequential(nn.Linear(3, 2)))
    assert [each.name for each in explain(parallel).entries] == ["0.weight", "0.bias"]


def test_the_table_reads() -> None:
    plan = explain(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 2)))
    text = str(plan)
    for words in ("0.weight", "8×3×3×3", "27", "scale of a normalization", "centralized: 2 of 6 tensors"):
        assert words in text
    assert "<table>" in plan._repr_html_()
    assert "&" not in plan._repr_html_().replace("&amp;", "").replace("&lt;", "").replace("&quot;", "")
    row = plan.rows()[0]
    assert row["parameter"] == "0.weight"
    assert (row["vectors"], row["length"], row["centralized"]) == (8, 27, True)
    totals = plan.totals()
    assert totals["centralized_parameters"] == 8 * 27 + 16
    assert totals["vectors"] == 10
    assert (totals["shortest_vector"], totals["longest_vector"]) == (8, 27)


def test_nothing_to_centralize_is_an_error() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Embedding(3, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(
        ValueError, match=r"nothing would be centralized.*0\.weight: scale of a normalization"
    ):
        gradcent.attach(optimizer, model)
    with pytest.raises(ValueError, match="nothing would be centralized"):
        gradcent.attach(
            torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1), nn.Linear(3, 2)
        )  # another model's
    with pytest.raises(ValueError, match="nothing would be centralized"):
        gradcent.centralize_gradients_(model)
    with pytest.raises(ValueError, match="nothing would be centralized"):
        gradcent.attach_to_gradients(model)
    with pytest.raises(ValueError, match="nothing would be centralized"):
        gradcent.optim.SGD(model.parameters(), lr=0.1, model=model)
    with pytest.raises(TypeError, match="needs the model"):
        gradcent.optim.SGD(model.parameters(), lr=0.1)
    norms = [nn.BatchNorm1d(3), nn.BatchNorm1d(3)]
    for model, more in (
        (nn.Sequential(*norms), ")"),
        (nn.Sequential(*norms, nn.RMSNorm(3)), "; … and 1 more)"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"1.bias: bias of a normalization{more}")):
            gradcent.attach(torch.optim.SGD(model.parameters(), lr=0.1), model)


def test_reasons_and_decisions_are_data() -> None:
    """Programs read the code and who decided; the text is for people."""
    model = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Embedding(3, 4), nn.Linear(1, 4))
    model.register_parameter("own", nn.Parameter(torch.zeros(4, 4)))
    rows = {row["parameter"]: row for row in explain(model, overrides={"3.weight": None}).rows()}
    assert {name: row["reason_code"] for name, row in rows.items()} == {
        "own": "UNKNOWN_MODULE",
        "0.weight": "NONE",
        "0.bias": "BIAS",
        "1.weight": "NORM_SCALE",
        "1.bias": "NORM_BIAS",
        "2.weight": "EMBEDDING",
        "3.weight": "LEFT_BY_OVERRIDE",
        "3.bias": "BIAS",
    }
    assert rows["0.weight"]["source"] == "rule"
    assert rows["3.weight"]["source"] == "override"


def test_a_named_layout_needs_the_same_dims_everywhere() -> None:
    for name in ("rows", "columns", "stacked_rows", "stacked_columns"):
        for shape in ((4,), (4, 3), (4, 3, 5)):
            model = nn.Module()
            model.register_parameter("weight", nn.Parameter(torch.zeros(shape)))
            try:
                direct = getattr(Layout, name)(shape)
            except ValueError as error:
                with pytest.raises(ValueError, match=str(error).split(",")[0]):
                    explain(model, overrides={"weight": name}, min_length=2)
            else:
                assert layouts(model, overrides={"weight": name}, min_length=2)["weight"] == direct


def test_printing_an_optimizer_shows_one_line_about_gc() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plain = str(optimizer)
    gradcent.attach(optimizer, model)
    assert str(optimizer) == f"{plain}\ngradcent: 1 of 4 tensors centralized, 67 % of weights"
    gradcent.detach(optimizer)
    assert str(optimizer) == plain
