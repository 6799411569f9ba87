"""What a stranger gets wrong is answered in words that name it and say what to do, never by an inner error."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import gradcent
from gradcent import Layout, Plan
from optimizer_cases import Homemade


class Own(nn.Module):
    """A module that gradcent does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(3, 4))
        self.temperature = nn.Parameter(torch.tensor(1.0))


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(6, 2))


def sgd(model: nn.Module, **options) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


NO_MODELS = {
    "SGD": lambda model: sgd(model),
    "generator of Parameter": lambda model: model.parameters(),
    "list of Parameter": lambda model: list(model.parameters()),
    "OrderedDict of str": lambda model: model.state_dict(),
    "str": lambda model: "resnet50",
    "int": lambda model: 3,
    "list": lambda model: [],
}


@pytest.mark.parametrize("given", NO_MODELS)
@pytest.mark.parametrize(
    "where", ["explain", "attach", "attach_to_gradients", "centralize_gradients_", "Monitor"]
)
def test_what_is_no_model(where: str, given: str) -> None:
    model = net()
    wrong = NO_MODELS[given](model)
    call = (
        (lambda given: gradcent.attach(sgd(model), given)) if where == "attach" else getattr(gradcent, where)
    )
    with pytest.raises(TypeError, match=rf"nn\.Module \(or a list of them\), got {given}$"):
        call(wrong)


def test_a_plan_in_the_place_of_the_model() -> None:
    model = net()
    with pytest.raises(TypeError, match="plan="):
        gradcent.attach(sgd(model), gradcent.explain(model))
    gradcent.attach(sgd(model), plan=gradcent.explain(model))
    gradcent.attach_to_gradients(model, plan=gradcent.explain(model)).remove()


@pytest.mark.parametrize(
    "choice",
    [
        {"layers": "conv"},
        {"overrides": {"0.weight": None}},
        {"min_length": 2},
        {"example": torch.ones(4, 2, 4)},
        {"example_forward": lambda model, batch: None},
    ],
    ids=lambda choice: next(iter(choice)),
)
def test_choices_beside_a_ready_plan_are_refused_not_ignored(choice: dict) -> None:
    model = net()
    plan = gradcent.explain(model)
    calls = [
        lambda: gradcent.attach(sgd(model), plan=plan, **choice),
        lambda: gradcent.optim.SGD(model.parameters(), lr=0.1, plan=plan, **choice),
        lambda: gradcent.attach_to_gradients(model, plan=plan, **choice),
    ]
    if not choice.keys() & {"example", "example_forward"}:  # which these do not take
        calls += [
            lambda: gradcent.Monitor(model, plan=plan, **choice),
            lambda: gradcent.centralize_gradients_(plan, **choice),
        ]
    for call in calls:
        with pytest.raises(ValueError, match="made already"):
            call()


def test_a_ready_plan_is_not_made_anew_behind_the_users_back() -> None:
    model = net()
    optimizer = gradcent.attach(
        torch.optim.SGD(model[0].parameters(), lr=0.1), model, plan=gradcent.explain(model, layers="conv")
    )
    model.append(nn.Linear(2, 2))
    with pytest.warns(UserWarning, match="not parameters of the model"):
        optimizer.add_param_group({"params": model[3].parameters()})
    assert gradcent.attached(optimizer).plan.layout(model[3].weight) is None


@pytest.mark.parametrize("value", [3, True, False, (1, 1, 3, 6), [None]], ids=str)
def test_override_values_that_are_no_layouts(value: object) -> None:
    with pytest.raises(TypeError, match=r"override '0\.weight'.*None to leave it alone"):
        gradcent.explain(net(), overrides={"0.weight": value})


def test_override_functions_that_do_not_answer_with_a_layout() -> None:
    with pytest.raises(TypeError, match=r"override '0\.weight'.*returned NoneType"):
        gradcent.explain(net(), overrides={"0.weight": lambda shape: None})
    # the user's own errors come through as they are
    with pytest.raises(KeyError):
        gradcent.explain(net(), overrides={"0.weight": lambda shape: {}[0]})


def test_overrides_that_are_no_mapping_or_have_odd_keys() -> None:
    model = net()
    for wrong in (["0.weight"], "0.weight"):
        with pytest.raises(TypeError, match="overrides must be a dict"):
            gradcent.explain(model, overrides=wrong)
    for key in (model[0], int, 3):
        with pytest.raises(TypeError, match="name pattern or a module type"):
            gradcent.explain(model, overrides={key: None})


def test_rules_that_are_no_rules() -> None:
    with pytest.raises(TypeError, match="rule must be"):
        gradcent.register(Own, None)
    with pytest.raises(TypeError, match="module type"):
        gradcent.unregister("Own")
    for answer, error, says in [
        (None, TypeError, "returned NoneType for matrix"),
        (Layout(1, 1, 5, 5), ValueError, "Own for matrix.*25 elements"),
    ]:
        gradcent.register(Own, lambda module, name, shape, answer=answer: answer)
        try:
            with pytest.raises(error, match=says):
                gradcent.explain(Own())
        finally:
            gradcent.unregister(Own)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (Layout.rows, ()),
        (Layout.columns, (5,)),
        (Layout.stacked_rows, (5,)),
        (Layout.stacked_columns, (5, 3)),
    ],
)
def test_layouts_of_too_few_dims(make, shape) -> None:
    with pytest.raises(ValueError, match="dims"):
        make(shape)


def test_what_is_no_tensor() -> None:
    with pytest.raises(TypeError, match="tensor, got list"):
        gradcent.centralize([1.0, 2.0], Layout.rows((1, 2)))
    with pytest.raises(TypeError, match=r"\(tensor, layout\)"):
        Plan.of_tensors({"w": torch.zeros(2, 3)})


def test_strangers_are_said_when_attaching() -> None:
    """The loss has weights of its own, and only the model was given."""
    model, other = net(), net()
    both = [*model.parameters(), *other.parameters()]
    with pytest.warns(UserWarning, match=r"4 of 8 tensors .* not parameters of the model"):
        gradcent.attach(torch.optim.SGD(both, lr=0.1), model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradcent.attach(torch.optim.SGD(both, lr=0.1), [model, other])
        # a temperature or a margin is nobody's weight vector
        extra = [nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(5))]
        gradcent.attach(torch.optim.SGD([*model.parameters(), *extra], lr=0.1), model)
    extra = [nn.Parameter(torch.ones(2, 3))]
    with pytest.warns(UserWarning, match=r"1 of 5 tensors"):
        gradcent.attach(torch.optim.SGD([*model.parameters(), *extra], lr=0.1), model)


def test_a_choice_of_decay_where_there_is_none_to_choose() -> None:
    model = net()
    for optimizer in (torch.optim.Rprop(model.parameters()), torch.optim.LBFGS(model.parameters())):
        with pytest.raises(ValueError, match="no weight_decay"):
            gradcent.attach(optimizer, model, decay="coupled")
    # a decay that is 0 now may be scheduled to be something
    gradcent.attach(Homemade(model.parameters(), weight_decay=0.0), model, decay="coupled")


@pytest.mark.parametrize("kernel", ["native", "triton", "foreach"])
def test_a_kernel_that_has_no_such_path_is_refused(kernel: str) -> None:
    model = net()
    with pytest.raises(ValueError, match=f"kernel='{kernel}'.*LBFGS"):
        gradcent.attach(torch.optim.LBFGS(model.parameters()), model, kernel=kernel)


@pytest.mark.parametrize("kernel", ["native", "triton"])
def test_a_kernel_that_cannot_project_updates_is_refused(kernel: str) -> None:
    model = net()
    for optimizer in (torch.optim.RMSprop(model.parameters()), Homemade(model.parameters())):
        with pytest.raises(ValueError, match=f"kernel='{kernel}'.*update"):
            gradcent.attach(optimizer, model, at="update", kernel=kernel)


def test_a_refused_group_is_not_kept() -> None:
    model = net()
    optimizer = gradcent.attach(Homemade(model[0].parameters()), model)
    with pytest.raises(ValueError, match="does not know how Homemade"):
        optimizer.add_param_group({"params": model[2].parameters(), "weight_decay": 0.1})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": model[2].parameters()})


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_momentum_gathered_without_gc_is_said(scale: float) -> None:
    model = net()
    optimizer = sgd(model, momentum=0.9)
    (scale * model(torch.ones(4, 2, 4))).sum().backward()
    optimizer.step()
    with pytest.warns(UserWarning, match=r"momentum of 0\.weight was accumulated without GC"):
        gradcent.attach(optimizer, model)
    fresh = gradcent.attach(sgd(model, momentum=0.9), model)
    fresh.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradcent.attach(gradcent.detach(fresh), model)
        still = sgd(model, momentum=0.9)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        still.step()
        gradcent.attach(still, model)


class Sharpness(torch.optim.Optimizer):
    """SAM as people write it: two half steps, the second of which is another optimizer's step."""

    def __init__(self, params, base) -> None:
        super().__init__(params, {})
        self.base_optimizer = base(self.param_groups, lr=0.1)
        self.param_groups = self.base_optimizer.param_groups

    def second_step(self) -> None:
        self.base_optimizer.step()


def test_an_optimizer_that_steps_another_names_that_one() -> None:
    """Attached to the outer one, GC would be passed by whenever somebody calls the half steps."""
    model = net()
    outer = Sharpness(model.parameters(), torch.optim.SGD)
    with pytest.raises(TypeError, match=r"gradcent\.attach\(optimizer\.base_optimizer, model\)"):
        gradcent.attach(outer, model)
    gradcent.attach(outer.base_optimizer, model)
    before = model[2].weight.detach().sum(1)
    model(torch.ones(4, 2, 4)).sum().backward()
    outer.second_step()
    torch.testing.assert_close(model[2].weight.detach().sum(1), before)


class Wrapper:
    """No Optimizer itself, as DeepSpeed's and fairscale's wrappers."""

    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


@pytest.mark.parametrize("name", ["optimizer", "base", "base_optimizer", None])
def test_a_wrapper_that_is_no_optimizer_names_the_one_inside(name: str | None) -> None:
    model = net()
    hint = (
        rf"; attach to the optimizer inside it: gradcent\.attach\(optimizer\.{name}, model\)" if name else ""
    )
    with pytest.raises(TypeError, match=rf"needs a torch\.optim\.Optimizer, got Wrapper{hint}$"):
        gradcent.attach(Wrapper(**({name: sgd(model)} if name else {})), model)


def test_a_container_of_optimizers_names_attach_each() -> None:
    model = net()
    outer = sgd(model)
    outer.optimizers = []  # a list without optimizers is none of gradcent's business
    gradcent.detach(gradcent.attach(outer, model))
    outer.optimizers = [sgd(model)]
    with pytest.raises(TypeError, match=r"attach_each\(optimizer\.optimizers, model\)"):
        gradcent.attach(outer, model)


class FlatParameter(nn.Parameter):
    """Known by its name, as FSDP1's."""


@pytest.mark.parametrize("sign", ["FlatParameter", "_fsdp_flattened", "ds_id", "wrapper", "deepspeed"])
def test_each_sign_of_flattened_parameters_is_enough(sign: str) -> None:
    model = net()
    if sign == "FlatParameter":
        model[2].weight = FlatParameter(model[2].weight.detach())
    elif sign == "wrapper":
        model.append(type("FullyShardedDataParallel", (nn.Module,), {})())
    optimizer = sgd(model)
    if sign == "deepspeed":
        optimizer.__class__ = type("ZeRO", (torch.optim.SGD,), {"__module__": "deepspeed.runtime.zero"})
    elif sign in ("_fsdp_flattened", "ds_id"):
        setattr(model[2].weight, sign, 1)
    with pytest.raises(TypeError, match="flattened pieces"):
        gradcent.attach(optimizer, model)


def test_an_optimizer_of_biases_is_not_taken_for_flattened_parameters() -> None:
    model = net()
    with pytest.raises(ValueError, match=r"nothing would be centralized .*0\.bias: bias"):
        gradcent.attach(torch.optim.SGD([model[0].bias, model[2].bias], lr=0.1), model)


def test_a_step_replaced_on_the_object_is_noticed() -> None:
    model = net()
    optimizer = sgd(model)
    optimizer.step = lambda: None
    with pytest.raises(ValueError, match=r"optimizer\.step was replaced"):
        gradcent.attach(optimizer, model)


def test_summaries_count_in_words_that_read() -> None:
    model = nn.Sequential(Own(), nn.Conv1d(4, 4, 1), nn.ConvTranspose1d(4, 4, 1, bias=False))
    model[2].weight = model[1].weight
    said = gradcent.explain(model, layers="linear").summary()
    assert "1 single number" in said
    said = gradcent.explain(model).summary()
    assert "1 shared by layers that lay it out differently" in said
    assert "None" not in said


class Backwards(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight  # over dim 0, against the rule of nn.Linear


class Branch(Own):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def unreached() -> None:
    gradcent.explain(Branch(), example=torch.ones(2, 4))


def with_nan() -> torch.optim.Optimizer:
    model = net()
    optimizer = gradcent.attach(sgd(model), model, nonfinite="skip_step")
    model[0].weight.grad = torch.full_like(model[0].weight, torch.nan)
    return optimizer


def with_momentum() -> tuple[torch.optim.Optimizer, nn.Module]:
    model = net()
    optimizer = sgd(model, momentum=0.9)
    model(torch.ones(4, 2, 4)).sum().backward()
    optimizer.step()
    return optimizer, model


def hooked() -> nn.Module:
    model = net()
    gradcent.attach_to_gradients(model)
    return model


def with_switch(model: nn.Module) -> dict:
    return torch.optim.SGD([{"params": model.parameters(), "centralize": False}], lr=0.1).state_dict()


SQUARE = {"example": torch.ones(2, 4)}
WARNINGS = {
    "disagreement, explain": lambda m: gradcent.explain(Backwards(4, 4), **SQUARE),
    "disagreement, attach": lambda m: gradcent.attach(sgd(b := Backwards(4, 4)), b, **SQUARE),
    "disagreement, drop-in": lambda m: gradcent.optim.SGD(
        (b := Backwards(4, 4)).parameters(), model=b, **SQUARE
    ),
    "unreached, explain": lambda m: unreached(),
    "unknown, attach": lambda m: gradcent.attach(sgd(b := nn.ModuleList([Own(), m])), b),
    "unknown, drop-in": lambda m: gradcent.optim.AdamW(
        (b := nn.ModuleList([Own(), m])).parameters(), model=b
    ),
    "unknown, attach_to_gradients": lambda m: gradcent.attach_to_gradients(nn.ModuleList([Own(), m])),
    "other parameters": lambda m: gradcent.attach(torch.optim.SGD([*m.parameters(), *net().parameters()]), m),
    "other group": lambda m: gradcent.attach(sgd(m), m).add_param_group({"params": net().parameters()}),
    "checkpoint": lambda m: gradcent.attach(sgd(m), m).load_state_dict(with_switch(m)),
    "momentum": lambda m: gradcent.attach(*with_momentum()),
    "hooked": lambda m: gradcent.attach(sgd(b := hooked()), b),
    "attached": lambda m: (gradcent.attach(sgd(m), m), gradcent.attach_to_gradients(m)),
    "skipped step": lambda m: with_nan().step(),
}


@pytest.mark.parametrize("case", WARNINGS)
def test_warnings_name_the_line_of_the_user(case: str) -> None:
    """The default filter shows a warning once per line: all of them at one line of gradcent would be shown once."""
    with pytest.warns(UserWarning, match="gradcent: ") as said:
        _kept = WARNINGS[case](net())
    assert [warning.filename for warning in said] == [__file__]
