"""Does GC help a small vision transformer that a Hugging Face Trainer trains?

gradcent compare examples/compare_trainer.py:experiment --seeds 5
"""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from gradcent_lab.adapters import from_trainer


class Digits(Dataset):
    """scikit-learn's 1,797 digits as the model takes them: the first 900 to train, the rest to test."""

    def __init__(self, train: bool) -> None:
        digits = load_digits()
        half = slice(None, 900) if train else slice(900, None)
        self.images = torch.tensor(digits.images[half], dtype=torch.float32).unsqueeze(1) / 16
        self.labels = torch.tensor(digits.target[half])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"pixel_values": self.images[index], "labels": self.labels[index]}


def make_model() -> ViTForImageClassification:
    return ViTForImageClassification(
        ViTConfig(
            image_size=8,
            patch_size=2,
            num_channels=1,
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=96,
            num_labels=10,
        )
    )


def make_trainer() -> Trainer:
    return Trainer(
        model_init=make_model,  # every run needs a fresh model
        args=TrainingArguments(
            output_dir="trainer-output",
            num_train_epochs=10,
            per_device_train_batch_size=60,
            per_device_eval_batch_size=300,
            learning_rate=3e-3,
            weight_decay=0.01,
            warmup_steps=20,
            metric_for_best_model="accuracy",
            report_to="none",
            use_cpu=not torch.cuda.is_available(),
        ),
        train_dataset=Digits(train=True),
        eval_dataset=Digits(train=False),
        compute_metrics=lambda prediction: {
            "accuracy": 100.0 * (prediction.predictions.argmax(1) == prediction.label_ids).mean()
        },
    )


def experiment():
    return from_trainer(make_trainer, name="digits-vit")
