import pytest
import torch
from safetensors.torch import load_file

from fullstride.recipes import config_files
from fullstride.run_folder.folder import RunFolder
from fullstride.train import export
from fullstride.train.checkpoints.store import Snapshot, Store

from .runs import small


@pytest.fixture
def run(tmp_path):
    with RunFolder.create(tmp_path / "run", config_files.to_yaml(small())) as folder:
        Store(folder.checkpoints).save(Snapshot(7, {"model": {"in": torch.randn(3, 4)}}, {}))
    return folder.path


def test_a_folder_is_not_replaced_by_a_file(run, tmp_path):
    (tmp_path / "x.safetensors").mkdir()
    (tmp_path / "x.safetensors" / "kept").touch()
    with pytest.raises(OSError, match=r"cannot write .*x\.safetensors: Is a directory"):
        export.export(run, tmp_path / "x.safetensors", replace=True)
    assert (tmp_path / "x.safetensors" / "kept").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "x.safetensors"]


def test_a_file_that_is_there_is_replaced_when_asked_for_and_others_may_read_it(run, tmp_path):
    target = tmp_path / "x.safetensors"
    target.write_text("before")
    with pytest.raises(ValueError, match="is there already"):
        export.export(run, target)
    assert target.read_text() == "before"
    assert export.export(run, target, replace=True)[:2] == (7, 1)
    (tmp_path / "usual").touch()
    assert target.stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_tied_weights_are_exported_under_each_of_their_names(tmp_path):
    with RunFolder.create(tmp_path / "run", config_files.to_yaml(small())) as folder:
        weight = torch.randn(3, 4)
        Store(folder.checkpoints).save(Snapshot(7, {"model": {"in": weight, "out": weight}}, {}))
    export.export(tmp_path / "run", tmp_path / "x.safetensors")
    found = load_file(tmp_path / "x.safetensors")
    assert found.keys() == {"in", "out"}
    assert torch.equal(found["in"], weight)
    assert torch.equal(found["out"], weight)
