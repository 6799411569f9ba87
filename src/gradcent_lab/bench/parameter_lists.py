"""The parameter lists that are measured, as shapes and layouts: no model library is needed."""

from __future__ import annotations

from collections.abc import Callable

from gradcent import Layout

Listed = list[tuple[tuple[int, ...], Layout | None]]


def resnet50() -> Listed:
    """ResNet-50 for ImageNet: 25,557,032 parameters in 161 tensors."""
    entries = [_rows(64, 3, 7, 7), *_norm(64)]
    width = 64
    for planes, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            entries += [_rows(planes, width, 1, 1), *_norm(planes)]
            entries += [_rows(planes, planes, 3, 3), *_norm(planes)]
            entries += [_rows(4 * planes, planes, 1, 1), *_norm(4 * planes)]
            if block == 0:
                entries += [_rows(4 * planes, width, 1, 1), *_norm(4 * planes)]
            width = 4 * planes
    return [*entries, _rows(1000, 2048), ((1000,), None)]


def vit_b_16() -> Listed:
    """ViT-B/16: 86,567,656 parameters in 152 tensors."""
    entries: Listed = [((1, 1, 768), None), _rows(768, 3, 16, 16), ((768,), None), ((1, 197, 768), None)]
    for _ in range(12):
        entries += [
            *_norm(768),
            _rows(2304, 768),
            ((2304,), None),
            _rows(768, 768),
            ((768,), None),
            *_norm(768),
        ]
        entries += [_rows(3072, 768), ((3072,), None), _rows(768, 3072), ((768,), None)]
    return [*entries, *_norm(768), _rows(1000, 768), ((1000,), None)]


def gpt2_small() -> Listed:
    """GPT-2 small as transformers stores it, weights as (in, out): 124,439,808 parameters in 148 tensors."""
    entries: Listed = [((50257, 768), None), ((1024, 768), None)]
    for _ in range(12):
        entries += [*_norm(768), _columns(768, 2304), ((2304,), None), _columns(768, 768), ((768,), None)]
        entries += [*_norm(768), _columns(768, 3072), ((3072,), None), _columns(3072, 768), ((768,), None)]
    return [*entries, *_norm(768)]


def small_tensors(count: int = 2000) -> Listed:
    """Many small tensors of 32×32, whose step is mostly overhead."""
    return [_rows(32, 32)] * count


LISTS: dict[str, Callable[[], Listed]] = {
    "resnet50": resnet50,
    "vit_b_16": vit_b_16,
    "gpt2_small": gpt2_small,
    "2000x32x32": small_tensors,
}


def _rows(*shape: int) -> tuple[tuple[int, ...], Layout | None]:
    return shape, Layout.rows(shape)


def _columns(*shape: int) -> tuple[tuple[int, ...], Layout | None]:
    return shape, Layout.columns(shape)


def _norm(width: int) -> Listed:
    return [((width,), None), ((width,), None)]
