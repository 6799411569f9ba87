"""Object detection and instance segmentation: tables 8 and 9 of the paper (section 5.6).

torchvision's Faster R-CNN and Mask R-CNN in the lab's training loop, on COCO and on small sets in COCO's format.
"""
