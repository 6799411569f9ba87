"""The lines that tools/mutations.py breaks, and the tests that should notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One replacement in one file of src/gradcent; `old` stands there exactly once."""

    name: str
    file: str
    old: str
    new: str
    tests: str


OPERATOR = "tests/test_half.py tests/test_operator.py"
PLAN = "tests/test_plan.py tests/test_overrides.py"
CONTRACT = "tests/test_contract.py"
KERNELS = "tests/test_half.py tests/kernels/test_steps.py tests/kernels/test_native.py"
HOOKS = "tests/engines/test_engine_gradients.py"

# Rounding the sum of a vector of half numbers to their own precision, as accumulating in it would do at best.
_HALF_SUM = (
    "if (!IN_PLACE) {0} = t->dtype == BF16 ? (double)bits_to_float(float_to_bits((float){0}) & 0xffff0000u)"
    " : (double)half_to_float(float_to_half((float){0}));"
)

_OPERATOR = [
    ("half: no float32 anywhere", "_HALF = {torch.float16: torch.float32, torch.bfloat16: torch.float32}", "_HALF: dict = {}"),
    ("half: the first sum in half", "mean = vectors.sum(dims, keepdim=True, dtype=accumulate) / length",
     "mean = (vectors.sum(dims, keepdim=True) / length).to(accumulate or vectors.dtype)"),
    ("half: rounded before the second pass", "vectors = vectors.to(_HALF.get(dtype, dtype))", "pass"),
    ("half: drift subtracted in half", "vectors.copy_(vectors.to(drift.dtype) - drift)", "vectors.sub_(drift.to(vectors.dtype))"),
    ("decay dropped from the mean", "shift = 0.0 if weight is None else decay * _mean(*_vectors(weight, layout))", "shift = 0.0"),
    ("decay with the wrong sign", "shift = 0.0 if weight is None else decay *", "shift = 0.0 if weight is None else -decay *"),
    ("sums that overflow", "return torch.where(mean.isfinite(), mean, (vectors / length).sum(dims, keepdim=True))", "return mean"),
    ("complex parts mixed", "return torch.view_as_real(tensor.resolve_conj()).view(*shape, 2), dims",
     "return torch.view_as_real(tensor.resolve_conj()).view(*shape, 2), (*dims, len(shape))"),
    ("means restored the wrong way", "drift = _mean(vectors, dims) - means", "drift = means - _mean(vectors, dims)"),
]  # fmt: skip

_AXES = [
    ("axes: rows as columns", "layout.py", "return cls(1, 1, shape[0], math.prod(shape[1:]))",
     "return cls(1, shape[0], math.prod(shape[1:]), 1)"),
    ("axes: stacked rows as rows", "layout.py", "return cls(1, 1, shape[0] * shape[1], math.prod(shape[2:]))",
     "return cls(1, 1, shape[0], math.prod(shape[1:]))"),
    ("axes: stacked columns as columns", "layout.py", "return cls(shape[0], shape[1], shape[2], math.prod(shape[3:]))",
     "return cls(1, shape[0], shape[1], math.prod(shape[2:]))"),
]  # fmt: skip

_ATTACH = [
    ("decay: P(g) + λw instead of P(g + λw)", "attachment.py", 'return kind == "coupled"', 'return kind == "never"', CONTRACT),
    ("decay: decoupled treated as coupled", "attachment.py", 'return kind == "coupled"', 'return kind != "none"', CONTRACT),
    ("decay: AdamW listed as coupled", "decay.py", '"AdamW": "decoupled"', '"AdamW": "coupled"', "tests/test_switches.py"),
    ("decay: unknown taken for none", "attachment.py", 'if kind == "unknown" and self.options.at == "gradient":', "if False:", "tests/test_contract.py::test_unknown_decay_must_be_chosen"),
    ("per-group switch ignored", "attachment.py", "off=() if switch else parameters", "off=()", "tests/test_lifecycle.py::test_groups_have_their_own_options_and_switch"),
    ("state_dict key leaked", "attachment.py",
     "for group in optimizer.param_groups:\n            group.pop(SWITCH, None)", "for group in []:\n            group.pop(SWITCH, None)", "tests/test_lifecycle.py::test_groups_have_their_own_options_and_switch"),
    ("state_dict key leaked by add_param_group", "optim/_base.py", "self.param_groups[-1].pop(SWITCH, None)", "pass", "tests/test_lifecycle.py::test_a_group_added_later_has_its_switch"),
    ("a switch set later ignored", "attachment.py", "if SWITCH in group:", "if False:", "tests/test_switches.py"),
    ("added groups not planned", "optim/_base.py", "self._gradcent.add_group(self, self.param_groups[-1])", "pass", "tests/test_lifecycle.py::test_a_group_added_later_has_its_switch tests/test_lifecycle.py::test_a_group_of_strangers_is_said"),
    ("a refused group stays", "optim/_base.py", "self.param_groups.pop()", "pass", "tests/test_refusals.py"),
    ("copies lose GC", "optim/_base.py", '{**super().__getstate__(), "_gradcent": self._gradcent}', "super().__getstate__()", "tests/test_lifecycle.py::test_copies_keep_gc"),
    ("closure: L-BFGS sees the plain gradient", "optim/lbfgs.py", "parameter.grad = centralize(gradient, layout)", "pass", "tests/test_contract.py::test_the_optimizer_is_given_the_centralized_gradient[LBFGS-loop]"),
    ("a second attach is let pass", "attach.py", "if attached(optimizer) is not None:", "if False:", "tests/test_lifecycle.py::test_attaching_twice_is_an_error_and_after_detaching_is_not"),
    ("SparseAdam is let pass", "attach.py", "if isinstance(optimizer, torch.optim.SparseAdam):", "if False:", "tests/test_overrides.py"),
    ("detach leaves the hooks", "attach.py", "optimizer._gradcent_hooks.remove()", "pass", "tests/test_lifecycle.py::test_detach_gives_the_plain_optimizer_back"),
    ("authors: use_gc ignored", "authors.py", 'given["centralize"] = bool(given.pop("use_gc"))', 'given.pop("use_gc")', "tests/test_authors.py"),
    ("authors: gc_conv_only ignored", "authors.py", '"conv" if given.pop("gc_conv_only") else "all"', '"all" if given.pop("gc_conv_only") else "all"', "tests/test_authors.py"),
    ("authors: gc_loc ignored", "authors.py", '"gradient" if given.pop("gc_loc") else "update"', '"gradient" if given.pop("gc_loc") else "gradient"', "tests/test_authors.py"),
    ("authors: a GCC2 acts at the gradient", "authors.py", 'Adam_GCC2 = _named("Adam_GCC2", optim.Adam, layers="conv", at="update")',
     'Adam_GCC2 = _named("Adam_GCC2", optim.Adam, layers="conv", at="gradient")', "tests/test_authors.py"),
    ("Monitor: share of norm, not of energy", "diagnostics.py", "1 - norms[1] ** 2 / energy", "1 - norms[1] / norms[0]", "tests/test_diagnostics.py"),
    ("Monitor: drift of means, not of sums", "diagnostics.py", "* entry.layout.length\n", "* 1\n", "tests/test_diagnostics.py"),
    ("Monitor: reads after others' hooks", "diagnostics.py", "hooks.move_to_end(handle.id, last=False)", "pass", "tests/test_diagnostics.py"),
]  # fmt: skip

_KERNELS = [
    ("foreach: half rounded between the passes", "kernels/foreach.py", "residuals = list(torch._foreach_sub(residuals, means))",
     "residuals = [(each - mean).to(tensors[i].dtype) for i, each, mean in zip(selected, residuals, means, strict=True)]"),
    ("foreach: second pass dropped", "kernels/foreach.py", "torch._foreach_sub_(residuals, corrections)", "pass"),
    ("foreach: decay removed by the second pass", "kernels/foreach.py", "corrections = list(torch._foreach_add(corrections, shifts))", "pass"),
    ("steps: SGDW's decay coupled", "kernels/fused_steps.py", '_SGD, ("momentum_buffer",), (0,), decoupled=True)', '_SGD, ("momentum_buffer",), (0,))'),
    ("native: half sums of short rows in half", "kernels/csrc/panel_kernels.h",
     "NAME(fill)(inner, a[q], b[q], high + at, low + at);",
     "{ " + _HALF_SUM.format("a[q]") + " NAME(fill)(inner, a[q], IN_PLACE ? b[q] : 0, high + at, low + at); }"),
    ("native: half sums of long rows in half", "kernels/csrc/row_kernels.h", "double mean = total / (double)length;",
     _HALF_SUM.format("total") + " double mean = total / (double)length;"),
    ("native: half sums of panels in half", "kernels/csrc/panel_kernels.h", "for (int i = 0; i < inner; i++) total += sums[q * inner + i];",
     "for (int i = 0; i < inner; i++) total += sums[q * inner + i]; " + _HALF_SUM.format("total")),
    ("native: half sums of columns in half", "kernels/csrc/column_kernels.h", "NAME(split)(total / (double)(t->outer * t->inner), NAME(shift_of)",
     _HALF_SUM.format("total") + " NAME(split)(total / (double)(t->outer * t->inner), NAME(shift_of)"),
    ("native: low part of the mean dropped", "kernels/csrc/reduce.h", "*low = isfinite((double)*high) ? (R)((base - (double)*high) + mean) : 0;", "*low = 0;"),
    ("native: four rows of columns summed in float32", "kernels/csrc/reduce.h",
     "d_sign * ((TO_DOUBLE(a, 0) + TO_DOUBLE(b, 0)) + (TO_DOUBLE(c, 0) + TO_DOUBLE(d, 0)));", "d_sign * TO_DOUBLE((a + b) + (c + d), 0);"),
    ("native: decay outside the projection", "kernels/csrc/update_rules.h", "if (decay == NAME(COUPLED)) x = x + k.decay * old;", ";"),
    ("native: maximize ignored", "kernels/csrc/update_rules.h", ".sign = (R)rule->sign,", ".sign = 1,"),
    ('native: at="update" dropped for momentum', "kernels/csrc/update_rules.h", "if (mode == NAME(APPLY)) d = (d - a) - b;",
     "if (mode == NAME(APPLY) && kind != NAME(MOMENTUM)) d = (d - a) - b;"),
    ("native: sums that overflow", "kernels/csrc/row_kernels.h",
     "mean = NAME(sum_piece)(job, t, k, vector, 0, length, 0, TINY) / (double)length / TINY;", ";"),
    ("native: gradients left scaled", "kernels/csrc/run_task.h", "g[i] = g[i] / (R)job->rule.unscale;", ";"),
    ("native: the next row summed with the wrong sign", "kernels/csrc/reduce.h",
     "const R strength = k.sign * k.decay;", "const R strength = k.decay;"),
    ("native: the last item of a range left out", "kernels/csrc/work_queue.c",
     "if (k >= range->end - range->begin) break;", "if (k >= range->end - range->begin - 1) break;"),
    ("native: the last of several small tensors left out", "kernels/csrc/schedule.c",
     "task->range.begin = k;\n        task->range.end = end;", "task->range.begin = k;\n        task->range.end = end - 1;"),
    ("native: means of short rows that overflow", "kernels/csrc/panel_kernels.h", "return !bad;", "return 1;"),
    ("native: rows left over by the streams are not centralized", "kernels/csrc/row_streams.h",
     "else if (rest < end)\n        NAME(centralize_streams)(1, 0,", "else if (rest < end && 0)\n        NAME(centralize_streams)(1, 0,"),
    ("native: a stream sums its present row again", "kernels/csrc/row_streams.h",
     "NAME(add_strip)(projected, g[f] + length + i,", "NAME(add_strip)(projected, g[f] + i,"),
    ("native: streams forget the decay's sign", "kernels/csrc/row_streams.h", "const R strength = k->sign * k->decay;", "const R strength = -k->decay;"),
    ("native: the last rows of a chunk are not summed", "kernels/csrc/column_kernels.h",
     "o += 4 * quarter;\n    }\n    if (!IS_DOUBLE", "o = last;\n    }\n    if (!IS_DOUBLE"),
    ("native: columns centralized at the wrong places", "kernels/csrc/column_kernels.h",
     "const int64_t from = at + q * quarter * row + j,", "const int64_t from = at + q * (quarter - 1) * row + j,"),
    ("native: bands that go together share their sums", "kernels/csrc/schedule.c",
     "at->batch, at->first, width, sums};", "at->batch, at->first, width, 0};"),
    ("native: columns that overflow", "kernels/csrc/column_kernels.h", "1, TINY, high, low);", "1, 1, high, low);"),
    ("native: the last chunk of columns is forgotten", "kernels/csrc/column_kernels.h",
     "for (int64_t c = 1; c < t->chunks; c++)", "for (int64_t c = 1; c < t->chunks - 1; c++)"),
]  # fmt: skip

_GROUPS = [
    ("group: other parameters are not noticed", "kernels/csrc/py_group.c",
     "if (PyList_GetItem(parameters, i) != table->entries[i].parameter) return 0;", ";"),
    ("group: the state that comes next is taken for the parameter's", "kernels/csrc/py_group.c",
     "|| key != parameter) {", ") {"),
    ("group: weights do not count as changed", "kernels/csrc/py_group.c",
     "(gradcent_run(&call) || bump_versions(&call, table, parameters, bump))", "gradcent_run(&call)"),
    ("tensors: a negated view is taken for its memory", "kernels/csrc/tensor_view.c", "return negated == Py_False;", "return 1;"),
    ("tensors: a subclass is taken for its memory", "kernels/csrc/tensor_view.c", "const int same = dispatch == plain_dispatch;",
     "const int same = 1;"),
    ("tensors: memory that is not there", "kernels/csrc/tensor_view.c", "return -1; /* elements without memory", "return 0; /* elements without memory"),
    ("shapes: another shape is not noticed", "kernels/csrc/py_shapes.c",
     "(ndim && memcmp(shape, expected + 1, (size_t)ndim * sizeof *shape))", "0"),
]  # fmt: skip

MUTATIONS = [
    *(Mutation(name, "operator.py", old, new, OPERATOR) for name, old, new in _OPERATOR),
    *(Mutation(*each, PLAN) for each in _AXES),
    *(Mutation(*each) for each in _ATTACH),
    *(Mutation(*each, KERNELS) for each in _KERNELS),
    Mutation(
        "group: the switch of a group is ignored",
        "optim/_explicit_step.py",
        "        attachment.apply_group_switch(self, group)\n",
        "",
        "tests/test_quick.py",
    ),
    *(Mutation(*each, "tests/kernels/test_step_group.py tests/test_quick.py") for each in _GROUPS),
]
