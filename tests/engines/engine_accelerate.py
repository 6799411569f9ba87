"""Accelerate with FSDP2, which puts new parameters into the optimizer, and with DDP."""

from __future__ import annotations

import copy
import os
from typing import Any

import torch.distributed as dist
from engine_ddp import mine
from engine_fsdp2 import whole
from engine_harness import case
from engine_truth import OPTIMIZERS, OVERRIDES, batches, difference, loss_of, model, reference
from torch import nn

import gradcent

for _engine in ("DDP", "FSDP2"):
    for _order in ("attach, prepare", "prepare, attach"):

        @case(
            f"accelerate-{_engine.lower()}-{_order.split(',')[0]}-first",
            "Accelerate",
            f"{_engine}, 2 processes: {_order}",
            limit=1e-12,
            package="accelerate",
            around=_engine,
            order=_order,
        )
        def accelerated(around: str, order: str) -> dict[str, Any]:
            os.environ["ACCELERATE_USE_CPU"] = "true"
            from accelerate import Accelerator, FullyShardedDataParallelPlugin
            from accelerate.state import AcceleratorState, PartialState

            AcceleratorState._reset_state(reset_partial_state=True)
            PartialState._reset_state()
            start = model()
            net = copy.deepcopy(start)
            plugin = None
            if around == "FSDP2":
                plugin = FullyShardedDataParallelPlugin(
                    fsdp_version=2,
                    auto_wrap_policy="transformer_based_wrap",
                    transformer_cls_names_to_wrap=["Linear", "ConvTranspose2d"],
                )
            accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
            assert accelerator.num_processes == dist.get_world_size()
            optimizer: Any = OPTIMIZERS["sgd"](net.parameters())
            if order == "attach, prepare":
                gradcent.attach(optimizer, net, overrides=OVERRIDES)
            net, optimizer = accelerator.prepare(net, optimizer)
            if order == "prepare, attach":
                gradcent.attach(optimizer.optimizer, net, overrides=OVERRIDES)
            for x, y in batches():
                optimizer.zero_grad()
                accelerator.backward(loss_of(net, mine(x), mine(y)))
                optimizer.step()
            plain: nn.Module = accelerator.unwrap_model(net)
            return {"difference": difference(whole(plain), reference(start, "sgd", "gradient"))}
