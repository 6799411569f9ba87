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
    ("second centring pass dropped", "again = rest.sum(dims, keepdim=True) / layout.length + shift",
     "again = 0 * rest.sum(dims, keepdim=True)"),
    ("decay dropped from the mean", "shift = 0.0 if weight is None else decay * _mean(*_vectors(weight, layout))", "shift = 0.0"),
    ("decay removed again by the second pass", "again = rest.sum(dims, keepdim=True) / layout.length + shift",
     "again = rest.sum(dims, keepdim=True) / layout.length"),
    ("decay with the wrong sign", "shift = 0.0 if weight is None else decay *", "shift = 0.0 if weight is None else -decay *"),
    ("sums that overflow", "return torch.where(mean.isfinite(), mean, (vectors / length).sum(dims, keepdim=True))", "return mean"),
    ("residues that overflow", "torch.where(again.isfinite(), again, torch.zeros_like(again))", "again"),
    ("complex parts mixed", "return torch.view_as_real(tensor.resolve_conj()).view(*shape, 2), dims",
     "return torch.view_as_real(tensor.resolve_conj()).view(*shape, 2), (*dims, len(shape))"),
    ("means restored the wrong way", "drift = _mean(vectors, dims) - means", "drift = means - _mean(vectors, dims)"),
]  # fmt: skip

_AXES = [
    ("axes: rows as columns", "layout.py", "return cls(1, 1, shape[0], math.prod(shape[1:]))",
     "return cls(1, shape[0], math.prod(shape[1:]), 1)"),
    ("axes: Linear by columns", "rules.py",
     "(module.out_features, module.in_features)\n    return Layout.rows(shape)",
     "(module.out_features, module.in_features)\n    return Layout.columns(shape)"),
    ("axes: Bilinear by columns", "rules.py",
     "module.in2_features)\n    return Layout.rows(shape)", "module.in2_features)\n    return Layout.columns(shape)"),
    ("axes: Conv over the kernel alone", "rules.py",
     "expected = (outputs, inputs // groups, *kernel)\n    return Layout.rows(shape)",
     "expected = (outputs, inputs // groups, *kernel)\n    return Layout.stacked_rows(shape)"),
    ("axes: transposed convolution by rows", "rules.py", "return Layout.transposed(shape, groups) if", "return Layout.rows(shape) if"),
    ("axes: groups of a transposed convolution ignored", "rules.py", "Layout.transposed(shape, groups)", "Layout.transposed(shape, 1)"),
    ("axes: attention by columns", "rules.py",
     '"v_proj_weight") and len(shape) == 2:\n        return Layout.rows(shape)',
     '"v_proj_weight") and len(shape) == 2:\n        return Layout.columns(shape)'),
    ("axes: recurrent by columns", "rules.py",
     'name.startswith("weight_") and len(shape) == 2:\n        return Layout.rows(shape)',
     'name.startswith("weight_") and len(shape) == 2:\n        return Layout.columns(shape)'),
    ("axes: transformers' Conv1D by rows", "rules.py", "module.nf))\n    return Layout.columns(shape)", "module.nf))\n    return Layout.rows(shape)"),
    ("axes: stacked rows as rows", "layout.py", "return cls(1, 1, shape[0] * shape[1], math.prod(shape[2:]))",
     "return cls(1, 1, shape[0], math.prod(shape[1:]))"),
    ("axes: stacked columns as columns", "layout.py", "return cls(shape[0], shape[1], shape[2], math.prod(shape[3:]))",
     "return cls(1, shape[0], shape[1], math.prod(shape[2:]))"),
    ("norms by their rank", "rules.py", "nn.LayerNorm: Known(_norm, None),", 'nn.LayerNorm: Known(named_rule("rows"), "linear"),'),
    ("length-1 guard dropped", "plan.py", "if entry.layout.length == 1:", "if False:"),
    ('layers="conv" ignored', "plan.py", 'and self.layers != "all" and known.kind != self.layers', "and False"),
    ("a plan of nothing is let pass", "plan.py", "if any(entry.layout is not None for entry in self.entries):", "if True:"),
    ("a pattern that matches nothing is let pass", "plan.py", "if key not in self.matched:", "if False:"),
    ("tied embeddings centralized", "plan.py", "if rules.EMBEDDING in answers:", "if False:"),
    ("weights laid out in two ways take one", "plan.py", "if len(layouts) > 1:", "if False:"),
    ("magnitude of weight norm taken for the weight", "uses.py", "if len(siblings) > 1 and parameter is not max(", "if False and parameter is not max("),
    ("frozen parameters counted as centralized", "plan.py", "return replace(entry, frozen=True, reason=", "return replace(entry, reason="),
    ("lazy parameters let pass", "plan.py", "if torch.nn.parameter.is_lazy(parameter):", "if False:"),
]  # fmt: skip

_ATTACH = [
    ("decay: P(g) + λw instead of P(g + λw)", "attachment.py", 'return kind == "coupled"', 'return kind == "never"', CONTRACT),
    ("decay: decoupled treated as coupled", "attachment.py", 'return kind == "coupled"', 'return kind != "none"', CONTRACT),
    ("decay: AdamW listed as coupled", "decay.py", '"AdamW": "decoupled"', '"AdamW": "coupled"', "tests/test_switches.py"),
    ("decay: decoupled_weight_decay not looked at", "decay.py", '("decoupled_weight_decay", "weight_decouple")', '("weight_decouple",)', "tests/test_torch_database.py::test_every_input_trains_as_torch_fed_by_hand_in_every_form"),
    ("decay: unknown taken for none", "attachment.py", 'if kind == "unknown" and self.options.at == "gradient":', "if False:", "tests/test_contract.py::test_unknown_decay_must_be_chosen"),
    ("decay: a contradicting choice obeyed", "decay.py", 'if chosen == "coupled" and own == "decoupled":', "if False:", "tests/test_contract.py::test_coupled_is_refused_where_decay_is_decoupled"),
    ("per-group switch ignored", "attachment.py", "off=() if switch else parameters", "off=()", "tests/test_lifecycle.py::test_groups_have_their_own_options_and_switch"),
    ("state_dict key leaked", "attachment.py",
     "for group in optimizer.param_groups:\n            group.pop(SWITCH, None)", "for group in []:\n            group.pop(SWITCH, None)", "tests/test_lifecycle.py::test_groups_have_their_own_options_and_switch"),
    ("state_dict key leaked by add_param_group", "optim/_base.py", "self.param_groups[-1].pop(SWITCH, None)", "pass", "tests/test_lifecycle.py::test_a_group_added_later_has_its_switch"),
    ("a switch set later ignored", "attachment.py", "if SWITCH in group:", "if False:", "tests/test_switches.py"),
    ("a checkpoint's switch obeyed", "optim/_base.py", "self._gradcent.pass_over_switches(state.get(\"param_groups\", []))", "pass", "tests/test_switches.py"),
    ("decay: unknown in mid-training taken for none", "attachment.py", 'if kind == "unknown":  # there', "if False:  # there", "tests/test_switches.py"),
    ("strangers not said", "attachment.py", "if any(each.ndim > 1 for each in strangers):", "if False:", "tests/test_refusals.py"),
    ("choices beside a ready plan ignored", "plan.py", 'if layers != "all" or overrides:', "if False:", "tests/test_refusals.py"),
    ("a kernel without such a path let pass", "optim/_base.py", "and not cls._gradcent_whole_step()", "and False", "tests/test_refusals.py"),
    ("pickled models lose their hooks", "gradients.py", "return type(None), ()", "return _Mark, (self.handles,)", HOOKS),
    ("added groups not planned", "optim/_base.py", "self._gradcent.add_group(self, self.param_groups[-1])", "pass", "tests/test_lifecycle.py::test_a_group_added_later_has_its_switch tests/test_lifecycle.py::test_a_group_of_strangers_is_said"),
    ("a refused group stays", "optim/_base.py", "self.param_groups.pop()", "pass", "tests/test_refusals.py"),
    ("copies lose GC", "optim/_base.py", '{**super().__getstate__(), "_gradcent": self._gradcent}', "super().__getstate__()", "tests/test_lifecycle.py::test_copies_keep_gc"),
    ("closure: the gradient before it is centralized", "hooks.py",
     "if not callable(closure):\n            self.gradients_ready(optimizer)", "if True:\n            self.gradients_ready(optimizer)", "tests/test_contract.py::test_a_closure_gives_the_same_training"),
    ("closure: L-BFGS sees the plain gradient", "optim/lbfgs.py", "parameter.grad = centralize(gradient, layout)", "pass", "tests/test_contract.py::test_the_optimizer_is_given_the_centralized_gradient[LBFGS-loop]"),
    ("maximize: sign of decay in hooks", "hooks.py", "decay = -decay", "pass", "tests/test_amp.py::test_a_subclass_with_a_fused_step_of_its_own"),
    ("maximize: sign of decay in torch's forms", "optim/_seam.py", "strength = -strength", "pass", "tests/test_contract.py::test_maximize_changes_the_sign_of_the_decay_beside_the_gradient"),
    ("maximize: sign of decay in compiled steps", "optim/_seam.py", "decay = -decay", "pass", "tests/test_compile.py::test_maximize_in_a_compiled_step"),
    ("grad_scale: decay unscaled in hooks", "hooks.py", "decay=decay if scale is None else decay * scale", "decay=decay", "tests/test_amp.py::test_a_subclass_with_a_fused_step_of_its_own"),
    ("grad_scale: decay unscaled in torch's forms", "optim/_seam.py", "return strength if scale is None else strength * scale",
     "return strength", "tests/test_amp.py::test_torchs_own_fused_step_behind_our_gradients"),
    ("grad_scale: decay unscaled in compiled steps", "ops.py", "strength = decay if scale is None else decay * scale", "strength = decay", "tests/test_compile.py::test_scaled_gradients_in_the_operator_of_compiled_steps"),
    ('at="update" dropped in torch\'s forms', "optim/_seam.py", "sharded.restore_means_(planned, theirs, means)", "pass", "tests/test_contract.py::test_the_whole_change_is_projected_at_the_update"),
    ('at="update" dropped for momentum', "optim/_seam.py", 'if at == "gradient":\n            strength', 'if at == "gradient" or options.get("momentum"):\n            strength', "tests/test_contract.py::test_the_whole_change_is_projected_at_the_update"),
    ('at="update" dropped in hooks', "hooks.py", "sharded.restore_means_(*self.lists(), self.means)", "pass", "tests/test_contract.py::test_the_whole_change_is_projected_at_the_update"),
    ('at="update" dropped in compiled steps', "optim/_seam.py", "calls.restore_means_(parameter, mean, shape)", "pass",
     "tests/test_compile.py::test_compiled_steps_are_right_and_compiled_no_more_often_than_torchs[update-SGD]"),
    ("compiled steps share one code object", "optim/_seam.py", 'raw.__code__.replace(co_name=f"step_{identity}")', "raw.__code__", "tests/test_compile.py::test_two_optimizers_of_the_same_shapes_do_not_share_a_compiled_step "
     "tests/test_compile.py::test_a_compiled_step_follows_detach_and_a_new_attach tests/test_compile.py::test_groups_of_a_compiled_step_are_told_apart"),
    ("non-finite: nothing is looked for", "hooks.py", "if all_finite([each.grad for each in trained], parameters[0].device, overflowed):", "if True:", "tests/test_nonfinite.py"),
    ("non-finite: the step is not skipped", "hooks.py", "each.grad = None", "pass", "tests/test_nonfinite.py::test_skip_step_leaves_everything_and_counts"),
    ("non-finite: hidden gradients not given back", "hooks.py", "parameter.grad = gradient", "pass", "tests/test_nonfinite.py::test_skip_step_leaves_everything_and_counts"),
    ("a second attach is let pass", "attach.py", "if attached(optimizer) is not None:", "if False:", "tests/test_lifecycle.py::test_attaching_twice_is_an_error_and_after_detaching_is_not"),
    ("SparseAdam is let pass", "attach.py", "if isinstance(optimizer, torch.optim.SparseAdam):", "if False:", "tests/test_overrides.py"),
    ("momentum that leans is not said", "attach.py", "> 1e-4 * float(here[0].abs().max()):", "> float('inf'):", "tests/test_refusals.py"),
    ("detach leaves the hooks", "attach.py", "optimizer._gradcent_hooks.remove()", "pass", "tests/test_lifecycle.py::test_detach_gives_the_plain_optimizer_back"),
    ("detach leaves the class", "attach.py", "optimizer.__class__ = _plain_class(type(optimizer))", "pass", "tests/test_lifecycle.py::test_detach_gives_the_plain_optimizer_back"),
    ("a scheduler's step passes GC by", "attach.py", "_take_step_back(optimizer)\n    optimizer.__class__", "optimizer.__class__", "tests/test_lifecycle.py::test_schedulers_made_before_and_after_attach"),
    ("an exchanged step is not noticed", "attach.py", 'if not getattr(held, "_wrapped_by_lr_sched", False):', "if False:", "tests/test_refusals.py"),
    ("hooks on gradients do nothing", "gradients.py", "return gradient if gradient.is_sparse else centralize(gradient, self.layout)", "return gradient", HOOKS),
    ("hooks on gradients set twice", "gradients.py", "if before is not None and not before._removed:", "if False:", HOOKS),
    ("unfrozen parameters get no hook", "gradients.py", "for place in self.places:\n                place.look()", "pass", f"{HOOKS} tests/test_refusals.py"),
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
