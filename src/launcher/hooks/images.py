"""Writes logged images as files of a chosen format, with the file names of trainloop."""

from collections.abc import Callable
from pathlib import Path

from launcher.hooks.base import BaseHook, Records, RunContext, TrainerView
from launcher.hooks.media import file_name, remove_steps_after, to_image
from launcher.hooks.records import flatten
from launcher.run import ranks
from launcher.run.files import replacing

FOLDER = "visualizations"


class ImageFileLoggerHook(BaseHook):
    """Writes the images of `trainer.log_images` to `visualizations/<step>/<key>.<format>` in the workspace, on rank 0.

    Args:
        image_format: the file's extension, which determines the format; or a function that returns it for the last part
            of a key.
    """

    def __init__(self, image_format: str | Callable[[str], str] = "png"):
        self.image_format = image_format
        self._check_lock = RunContext().check_lock

    def bind(self, context: RunContext) -> None:
        self._check_lock = context.check_lock

    def on_ready(self, trainer: TrainerView) -> None:
        if ranks.rank() == 0:
            self._check_lock()
            remove_steps_after((trainer.workspace or Path()) / FOLDER, trainer.step)

    def on_log_images(self, trainer: TrainerView, records: Records, dry_run: bool = False) -> None:
        for key, value in flatten(records).items() if ranks.rank() == 0 else ():
            last = key.rpartition("/")[2]
            extension = self.image_format if isinstance(self.image_format, str) else self.image_format(last)
            file = (trainer.workspace or Path()) / FOLDER / str(trainer.step) / f"{file_name(key)}.{extension}"
            if dry_run:
                trainer.logger.info("Would write %s.", file)
                continue
            image, format = to_image(key, value), _format(key, extension)
            if format == "JPEG" and image.mode not in ("L", "RGB", "CMYK"):
                image = image.convert("RGB")
            self._check_lock()
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                with replacing(file) as temporary:
                    image.save(temporary, format)
            except OSError as error:  # a full disk must not end the training
                trainer.logger.error("%s could not be written: %s.", file, error)


def _format(key: str, extension: str) -> str:
    from PIL import Image

    formats = Image.registered_extensions()
    if (format := formats.get(f".{extension.lower()}")) is None or format not in Image.SAVE:
        raise ValueError(f"image_format={extension}: pillow writes no such format ({key}); e.g. png, jpg, webp.")
    return format
