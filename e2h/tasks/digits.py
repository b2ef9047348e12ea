"""Handwritten digits: the 1,797 images of 8 x 8 that scikit-learn ships (from the UCI set of Alpaydin & Kaynak, 1998).

The one task that is not generated: a stand-in for MNIST where a paper's claim is about images, without a download.
"""

import dataclasses
import functools
from typing import ClassVar

import numpy as np

from e2h.tasks import TableTask


@dataclasses.dataclass(frozen=True)
class Digits(TableTask):
    """A prompt is the 64 pixels, row by row, each a brightness from 0 to 16; the answer is the digit."""

    EXAMPLES: ClassVar[tuple] = (
        (
            "0 0 5 13 9 1 0 0 0 0 13 15 10 15 5 0 0 3 15 2 0 11 8 0 0 4 12 0 0 8 8 0 "
            "0 5 8 0 0 9 8 0 0 4 11 0 1 12 7 0 0 2 14 5 10 12 0 0 0 0 6 13 10 0 0 0",
            "0",
        ),
    )

    @property
    def prompt_vocabulary(self) -> tuple[str, ...]:
        return tuple(map(str, range(17)))

    @property
    def answer_vocabulary(self) -> tuple[str, ...]:
        return tuple(map(str, range(10)))

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        images_NxP, digits_N = _digits()
        return images_NxP.astype(np.int32), digits_N.astype(np.int32)

    def oracle(self, prompt: list[str]) -> list[str]:
        """Who wrote it knows: the label of the image."""
        return [_labels()[tuple(map(int, prompt))]]


@functools.cache
def _digits():
    from sklearn.datasets import load_digits  # slow to import, and only this task needs it

    return load_digits(return_X_y=True)


@functools.cache
def _labels() -> dict[tuple[int, ...], str]:
    images_NxP, digits_N = _digits()
    return {tuple(map(int, image)): str(digit) for image, digit in zip(images_NxP.tolist(), digits_N, strict=True)}
