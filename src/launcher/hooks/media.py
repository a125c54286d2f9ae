"""Writes images, histograms and texts to `media.jsonl`, and image files to `images/<step>/`."""

import re
import shutil
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any
from zlib import crc32

import numpy as np
import torch
from annotated_types import Gt, Le

from launcher.errors import ConfigError, needing
from launcher.hooks.line_file import LineFileHook, Row
from launcher.hooks.records import flatten
from launcher.hooks.view import Records, State, TrainerView
from launcher.process import ranks
from launcher.process.files import replace_file
from launcher.rundir.folder import image_folders


class MediaHook(LineFileHook):
    """Writes the images, histograms and texts that are logged, on rank 0.

    It follows the rules of `metrics.jsonl`, see `LineFileHook`. A resume drops the rows and images
    of steps after the checkpoint. If a key is logged twice in a step, the last value is kept.

    Args:
        image_format: the extension of the image files, which determines their format (png, jpg,
            webp, or another one that pillow writes), or a function of the last part of a key.
        bins: the number of bins of a histogram.

    Examples:
        >>> class Drawing(Line):
        ...     def build_hooks(self):
        ...         draw = lambda trainer: trainer.log_text({"note": f"step {trainer.step}"})
        ...         return [MediaHook(), FunctionHook(on_after_step=draw)]
        >>> Drawing(max_steps=1, device="cpu", workspace="drawn").train()
        >>> "step 1" in Path("drawn/media.jsonl").read_text()
        True
    """

    changes_numbers = False

    key = "media"
    name = "media.jsonl"
    once = False
    image_folder = "images"

    def __init__(
        self,
        image_format: str | Callable[[str], str] = "png",
        bins: Annotated[int, Gt(0), Le(10_000)] = 64,
    ):
        super().__init__()
        self.image_format = image_format
        self.bins = bins
        if isinstance(image_format, str) and image_format != "png":
            pillow_format(image_format)

    @property
    def _folder(self) -> Path:
        return self.path.parent

    def on_ready(self, trainer: TrainerView) -> None:
        self.rows = [
            row for row in self.rows if "path" not in row or (self._folder / row["path"]).exists()
        ]
        super().on_ready(trainer)
        if ranks.rank() == 0:
            remove_steps_after(self._folder / self.image_folder, trainer.step)

    def on_log_images(self, trainer: TrainerView, records: Records, dry_run: bool = False) -> None:
        if ranks.rank() != 0:
            return
        for key, value in flatten(records).items():
            extension = self.image_format
            if not isinstance(extension, str):
                extension = extension(key.rpartition("/")[2])
            path = f"{self.image_folder}/{trainer.step}/{file_name(key)}.{extension}"
            if dry_run:
                trainer.logger.info("Would write %s.", self._folder / path)
            elif self._write_file(trainer, path, encode_image(key, value, extension)):
                self._add(trainer, "image", key, {"path": path})

    def on_log_histograms(
        self, trainer: TrainerView, records: Records, dry_run: bool = False
    ) -> None:
        for key, value in flatten(records).items():
            counts, edges = histogram(key, value, self.bins)
            if dry_run:
                trainer.logger.info("Would write the histogram %s to %s.", key, self.path)
            elif counts:
                self._add(trainer, "histogram", key, {"counts": counts, "edges": edges})

    def on_log_text(self, trainer: TrainerView, records: Records, dry_run: bool = False) -> None:
        for key, value in flatten(records).items():
            if not isinstance(value, str):
                raise ValueError(
                    f"log_text {key}: {type(value).__name__} is not a text; pass a str."
                )
            if dry_run:
                trainer.logger.info("Would write the text %s to %s.", key, self.path)
            else:
                self._add(trainer, "text", key, {"text": value})

    def on_state_dict(self, trainer: TrainerView, state_dict: State) -> None:
        images = self._folder / self.image_folder
        if images.is_dir():
            self.sync(self.path, images)
        super().on_state_dict(trainer, state_dict)

    def _write_file(self, trainer: TrainerView, path: str, content: bytes) -> bool:
        """Return whether a file in the run's folder could be written; if not, report it."""
        file = self._folder / path
        try:
            trainer.context.check_lock()
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(file, content)
        except OSError as error:
            self.report(f"{file} could not be written: {error}.")
            return False
        return True

    def _add(self, trainer: TrainerView, medium: str, key: str, content: Row) -> None:
        if ranks.rank() == 0:
            place = (trainer.step, medium, key)
            self.rows = [
                row for row in self.rows if (row["step"], row["kind"], row["key"]) != place
            ]
            self.rows.append(
                {"step": trainer.step, "time": time.time(), "kind": medium, "key": key, **content}
            )


def remove_steps_after(folder: Path, step: int) -> None:
    """Remove the folders of later steps, which a resumed run writes again."""
    for at, entry in image_folders(folder):
        if at > step:
            shutil.rmtree(entry, ignore_errors=True)


def file_name(key: str) -> str:
    """Return a key as a relative path. Special characters become `_`, with a checksum."""
    return "/".join(map(_part, key.split("/")))


def _part(part: str) -> str:
    if re.fullmatch(r"\w[\w.+=@-]{0,99}", part, re.ASCII):
        return part
    return f"{re.sub(r'[^a-zA-Z0-9]', '_', part)[:80]}-{crc32(part.encode()):08x}"


def to_image(key: str, value: object) -> Any:
    """Convert a PIL image, an array [H, W] or [H, W, C], or a tensor [H, W] or [C, H, W].

    C is 1, 3 or 4. Integers are 0 to 255, floats 0 to 1.
    """
    Image = _pillow(f"log_images {key}")
    if isinstance(value, Image.Image):
        return value
    array = _on_host(value) if isinstance(value, torch.Tensor | np.ndarray) else np.empty(0)
    if isinstance(value, torch.Tensor) and array.ndim == 3:
        array = np.moveaxis(array, 0, -1)
    is_image = array.ndim == 2 or (array.ndim == 3 and array.shape[-1] in (1, 3, 4))
    if not (is_image and array.size):
        shape = f"{type(value).__name__} of shape {tuple(getattr(value, 'shape', ()))}"
        raise ValueError(
            f"log_images {key}: {shape} is not an image; pass a PIL image, a NumPy array [H, W] or"
            " [H, W, C], or a tensor [H, W] or [C, H, W], with 1, 3 or 4 channels."
        )
    if array.dtype == bool or array.dtype.kind == "f":
        array = np.rint(np.nan_to_num(array.astype(np.float64), posinf=1.0).clip(0, 1) * 255)
    array = np.ascontiguousarray(array.clip(0, 255).astype(np.uint8))
    return Image.fromarray(array[..., 0] if array.ndim == 3 and array.shape[-1] == 1 else array)


def encode_image(key: str, value: Any, extension: str) -> bytes:
    """Return the content of an image file. JPEG stores no transparency, so it is dropped."""
    image = to_image(key, value)
    format = pillow_format(extension)
    content = BytesIO()
    if format == "JPEG" and image.mode not in ("L", "RGB", "CMYK"):
        image = image.convert("RGB")
    image.save(content, format)
    return content.getvalue()


def pillow_format(extension: str) -> str:
    """Return the name in pillow of the format with this extension."""
    Image = _pillow("hooks.media")
    format: str | None = Image.registered_extensions().get(f".{extension.lower()}")
    if format not in Image.SAVE:
        raise ConfigError(
            f"hooks.media.image_format={extension}: pillow does not write it; use e.g. png, jpg or"
            " webp."
        )
    return str(format)


def _pillow(what: str) -> Any:
    with needing(f"{what}: needs the package pillow; pip install 'torch-launcher[pictures]'."):
        from PIL import Image
    return Image


def histogram(key: str, value: object, bins: int) -> tuple[list[int], list[float]]:
    """Return counts and edges of the finite values of an array, tensor or list, or empty lists.

    All ranks must call it, since a sharded tensor is gathered.
    """
    values = _on_host(value)
    if values.dtype.kind not in "buif":
        raise ValueError(
            f"log_histograms {key}: {type(value).__name__} has no numbers; pass a tensor or an"
            " array."
        )
    values = values.astype(np.float64).ravel()
    values = values[np.isfinite(values)]
    if not values.size:
        return [], []
    numbers, bin_edges = np.histogram(values, bins)
    return numbers.tolist(), bin_edges.tolist()


def _on_host(value: object) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        value = value.detach()
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        value = (value.float() if value.is_floating_point() else value).cpu().numpy()
    return np.asarray(value)
