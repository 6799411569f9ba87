import json

import pytest
import torch
from detection_sets import annotation, coco_folder, real, rectangle
from PIL import Image

from gradcent_lab.data import open_set
from gradcent_lab.detection.data import DetectionSet, clean, open_detection
from gradcent_lab.detection.sources import open_source
from gradcent_lab.errors import UserError


def test_bad_annotations_are_counted_not_crashed_on(tmp_path, monkeypatch):
    good = [2.0, 3.0, 10.0, 8.0]
    bad = [
        annotation(1, 1, good),
        annotation(2, 1, [30.0, 20.0, 25.0, 25.0]),  # runs out at the right and below
        annotation(3, 1, [5.0, 5.0, 0.0, 4.0]),
        annotation(4, 1, [50.0, 5.0, 10.0, 4.0]),  # outside altogether
        annotation(5, 1, good, iscrowd=1, segmentation={"size": [30, 40], "counts": [100, 50, 1050]}),
        annotation(6, 2, good, segmentation=[]),
        annotation(7, 2, good, segmentation=[[1.0, 1.0, 2.0, 2.0]]),  # two corners
        annotation(8, 2, good, category_id=99),
        annotation(9, 77, good),
        annotation(10, 2, [float("nan"), 1.0, 2.0, 3.0]),
        annotation(11, 2, good, bbox=None),
        annotation(12, 3, [4.0, 4.0, 0.5, 9.0]),  # narrower than a pixel: alone it does not train
    ]
    root = coco_folder(tmp_path, monkeypatch, bad)
    data = DetectionSet(open_source("coco", root, "train"), train=True, masks=True, flip=False)
    assert data.counts == {
        "annotations": 12,
        "box clipped to the image": 1,
        "box without area, dropped": 4,
        "crowd, not trained on": 1,
        "empty mask, kept as empty": 2,
        "unknown image or category, dropped": 2,
        "images without a usable box, not trained on": 2,
    }
    assert [image["id"] for image in data.images] == [1, 2]
    _, target = data[0]
    assert target["boxes"].tolist() == [[2, 3, 12, 11], [30, 20, 40, 30]]
    assert target["labels"].tolist() == [1, 1]  # COCO's numbers have holes, the model's do not
    assert target["masks"].sum((1, 2)).tolist() == [80, 100]
    _, target = data[1]
    assert target["masks"].sum().item() == 0
    test = DetectionSet(open_source("coco", root, "test"), train=False, masks=True)
    assert len(test) == 4, "images without objects are part of the test"
    assert sum(each["iscrowd"] for each in test.truth["annotations"]) == 1


def test_flip_moves_boxes_and_masks_together(tmp_path, monkeypatch):
    root = coco_folder(tmp_path, monkeypatch, [annotation(1, 1, [2.0, 3.0, 10.0, 8.0])])
    data = DetectionSet(open_source("coco", root, "train"), train=True, masks=True)
    seen = set()
    for seed in range(20):
        torch.manual_seed(seed)
        _, target = data[0]
        (x1, y1, x2, y2) = target["boxes"][0].int().tolist()
        inside = torch.zeros(30, 40, dtype=torch.uint8)
        inside[y1:y2, x1:x2] = 1
        assert torch.equal(target["masks"][0], inside)
        seen.add(x1)
    assert seen == {2, 28}


def test_missing_images_are_named(tmp_path, monkeypatch):
    root = coco_folder(tmp_path, monkeypatch, [annotation(1, 1, [2.0, 3.0, 10.0, 8.0])])
    (root / "coco" / "val2017" / "000000000003.jpg").unlink()
    with pytest.raises(UserError, match=r"lacks 1 of 4 images, 000000000003\.jpg"):
        open_source("coco", root, "test")


def test_incomplete_set_is_refused(tmp_path, monkeypatch):
    root = coco_folder(tmp_path, monkeypatch, [annotation(1, 1, [2.0, 3.0, 10.0, 8.0])])
    monkeypatch.undo()  # the official counts again
    with pytest.raises(UserError, match="has 4 images, not 118,287"):
        open_source("coco", root, "train")
    with pytest.raises(UserError, match=r"COCO 2017 is not in .*cocodataset\.org"):
        open_source("coco", tmp_path / "coco", "train")


def test_damaged_annotations_are_one_line(tmp_path, monkeypatch):
    root = coco_folder(tmp_path, monkeypatch, [])
    path = root / "coco" / "annotations" / "instances_train2017.json"
    with pytest.raises(UserError, match="have no annotations"):
        open_source("coco", root, "train")
    path.write_text("{")
    from gradcent_lab.detection.sources import _read_json

    _read_json.cache_clear()
    with pytest.raises(UserError, match="is not JSON"):
        open_source("coco", root, "train")


def test_image_of_another_size_is_an_error(tmp_path, monkeypatch):
    root = coco_folder(tmp_path, monkeypatch, [annotation(1, 1, [2.0, 3.0, 10.0, 8.0])])
    Image.new("RGB", (20, 30)).save(root / "coco" / "train2017" / "000000000001.jpg")
    data = DetectionSet(open_source("coco", root, "train"), train=True, masks=False)
    with pytest.raises(UserError, match="is 20×30, but its annotations say 40×30"):
        data[0]


def test_detection_sets_are_no_classification_sets(tmp_path):
    with pytest.raises(UserError, match="is a detection set"):
        open_set({"set": "coco", "size": 32}, tmp_path)


def test_penn_fudan_boxes_hold_their_masks():
    train, test = open_detection({"set": "penn-fudan", "flip": False}, real("penn-fudan"), masks=True)
    assert (len(train), len(test)) == (128, 42)
    assert train.counts["annotations"] + test.counts["annotations"] == 423  # the set's own number of people
    names = [{image["file_name"] for image in part.images} for part in (train, test)]
    assert not names[0] & names[1]
    for index in range(0, 128, 32):
        image, target = train[index]
        assert image.shape[1:] == target["masks"].shape[1:]
        assert 0 <= float(image.min()) <= float(image.max()) <= 1
        for box, mask in zip(target["boxes"], target["masks"], strict=True):
            rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
            extent = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            assert box.tolist() == [float(v) for v in extent]


def test_coco_mini_loads_with_its_official_split():
    train, test = open_detection({"set": "coco-mini", "eval": 10}, real("coco-mini"), masks=True)
    assert len(test) == 10
    assert len(train) + train.counts["images without a usable box, not trained on"] == 337
    assert len(train.truth["categories"]) == 80
    _, target = train[0]
    assert len(target["boxes"]) == len(target["labels"]) == len(target["masks"]) > 0
    assert 1 <= int(target["labels"].min()) <= int(target["labels"].max()) <= 80
    again, _ = open_detection({"set": "coco-mini", "train": 20}, real("coco-mini"), masks=False)
    assert [i["id"] for i in again.images] == sorted(i["id"] for i in again.images)
    with pytest.raises(UserError, match="usable train images, not 1000"):
        open_detection({"set": "coco-mini", "train": 1000}, real("coco-mini"), masks=False)


def test_balloon_layout(tmp_path, monkeypatch):
    from dataclasses import replace

    from gradcent_lab.data import datasets as catalogue

    monkeypatch.setitem(
        catalogue.SETS, "balloon", replace(catalogue.SETS["balloon"], images={"train": 2, "test": 1})
    )
    corners = rectangle(4, 5, 10, 6)
    shape = {"name": "polygon", "all_points_x": corners[0::2], "all_points_y": corners[1::2]}
    region = {"shape_attributes": shape, "region_attributes": {}}
    for split, count in (("train", 2), ("val", 1)):
        folder = tmp_path / "balloon" / split
        folder.mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (40, 30)).save(folder / f"{number}.jpg")
        # the annotator wrote regions as a dict in its first version and as a list in its second
        entries = {
            f"{n}.jpg123": {"filename": f"{n}.jpg", "regions": {"0": region} if n else [region]}
            for n in range(count)
        }
        (folder / "via_region_data.json").write_text(json.dumps(entries))
    source = open_source("balloon", tmp_path, "train")
    objects, truth, counts = clean(source, masks=True)
    assert counts == {"annotations": 2}
    assert [found.boxes for found in objects.values()] == [[[4, 5, 14, 11]]] * 2
    assert len(truth) == 2
    assert len(open_source("balloon", tmp_path, "test").document["images"]) == 1
