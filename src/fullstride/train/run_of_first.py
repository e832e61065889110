"""A run that goes on, as all its processes see it: the first one alone has its folder."""

import base64
import tempfile
from pathlib import Path

from ..distributed import agreement
from ..distributed.world import current
from ..recipes import config_files
from ..recipes.config import Config
from ..run_folder.folder import RunFolder
from .errors import ToldElsewhere


class RunOfFirst:
    """config: the run's own, with what its folder keeps. text: as it stands there. world: who is here.

    To be kept for as long as the run: of processes without the folder it has copies of the files.
    """

    def __init__(self, run: Path, base: Config | None) -> None:
        self.world = current()
        agreement.check_command(self.world, resumes=True)  # else one waits for the run of another that has none
        found, trouble = None, None
        if self.world.is_first:
            try:
                found = _read(run, base)
            except (ValueError, OSError) as error:
                trouble = error
        said = self.world.from_first([None if trouble is None else str(trouble), found])
        if trouble is not None:
            raise trouble
        if said[0] is not None:
            raise ToldElsewhere
        name, self.text, files = said[1]
        folder = run if self.world.is_first else self._copied(name, files)
        self.config = config_files.from_yaml(self.text, f"{run}/config.yaml", base).of_run(folder)

    def _copied(self, name: str, files: dict[str, str]) -> Path:
        self._temporary = tempfile.TemporaryDirectory(prefix="fullstride-")
        folder = Path(self._temporary.name) / name
        folder.mkdir()
        for file, content in files.items():
            (folder / file).write_bytes(base64.b64decode(content))
        return folder


def _read(run: Path, base: Config | None) -> tuple[str, str, dict[str, str]]:
    """(name of the folder, text of the config, files that it wants from there), fit for JSON."""
    text = RunFolder.read(run).config_yaml
    files = config_files.from_yaml(text, f"{run}/config.yaml", base).kept_files(run)
    return run.resolve().name, text, {file.name: base64.b64encode(file.read_bytes()).decode() for file in files}
