"""DeepSpeed ZeRO 1, 2 and 3 on the CPU: `attach` refuses its flat parameters, `attach_to_gradients` reaches them."""

from __future__ import annotations

import copy
import os
from typing import Any

import torch
from engine_ddp import mine
from engine_harness import case, refused
from engine_truth import OPTIMIZERS, OVERRIDES, batches, difference, loss_of, model, reference

import gradcent

for _stage in (1, 2, 3):

    @case(
        f"deepspeed-zero-{_stage}",
        "DeepSpeed",
        f"ZeRO {_stage}, float32: attach refuses, attach_to_gradients before deepspeed.initialize",
        limit=2e-5,
        package="deepspeed",
        stage=_stage,
    )
    def zero(stage: int) -> dict[str, Any]:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        import deepspeed

        start = model(dtype=torch.float32)
        net = copy.deepcopy(start)
        gradcent.attach_to_gradients(net, overrides=OVERRIDES)
        config = {
            "train_micro_batch_size_per_gpu": 4,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
            "gradient_clipping": 0.0,  # DeepSpeed's default is 1.0, which the reference does not do
        }
        deepspeed.init_distributed(dist_backend="gloo")
        engine, optimizer, _, _ = deepspeed.initialize(
            model=net, optimizer=OPTIMIZERS["sgd_plain"](net.parameters()), config=config
        )
        refused(TypeError, "attach_to_gradients", lambda: gradcent.attach(optimizer, net))
        refused(TypeError, "attach_to_gradients", lambda: gradcent.attach(optimizer.optimizer, net))
        for x, y in batches(dtype=torch.float32):
            engine.backward(loss_of(engine, mine(x), mine(y)))
            engine.step()
        with deepspeed.zero.GatheredParameters(list(net.parameters()), enabled=stage == 3):
            got = {name: each.detach().clone() for name, each in net.named_parameters()}
        truth = reference(start, "sgd_plain", "gradient", dtype=torch.float32)
        return {
            "difference": difference(got, truth),
            "moved": difference(got, dict(start.named_parameters())),
        }


@case(
    "deepspeed-zero-3-init",
    "DeepSpeed",
    "ZeRO 3 with a model made under deepspeed.zero.Init, float32",
    limit=2e-5,
    package="deepspeed",
)
def made_in_pieces() -> dict[str, Any]:
    """Its parameters are empty from the start; transformers makes large models so."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 3},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
    }
    deepspeed.init_distributed(dist_backend="gloo")
    with deepspeed.zero.Init(config_dict_or_path=config):
        net = model(dtype=torch.float32)
    start = type(net)()
    with deepspeed.zero.GatheredParameters(list(net.parameters())):
        start.load_state_dict({name: each.detach().clone() for name, each in net.named_parameters()})
    handles = gradcent.attach_to_gradients(net, overrides=OVERRIDES)
    assert handles.plan.totals()["centralized_tensors"] == 7
    engine, _, _, _ = deepspeed.initialize(
        model=net, optimizer=OPTIMIZERS["sgd_plain"](net.parameters()), config=config
    )
    for x, y in batches(dtype=torch.float32):
        engine.backward(loss_of(engine, mine(x), mine(y)))
        engine.step()
    with deepspeed.zero.GatheredParameters(list(net.parameters())):
        got = {name: each.detach().clone() for name, each in net.named_parameters()}
    truth = reference(start, "sgd_plain", "gradient", dtype=torch.float32)
    return {"difference": difference(got, truth), "moved": difference(got, dict(start.named_parameters()))}
