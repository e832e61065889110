import torch
from safetensors.torch import load_file

from fullstride.recipes import config_files
from fullstride.run_folder.folder import RunFolder
from fullstride.train import export
from fullstride.train.checkpoints.store import Snapshot, Store

from .runs import small


def test_tied_weights_are_exported_under_each_of_their_names(tmp_path):
    with RunFolder.create(tmp_path / "run", config_files.to_yaml(small())) as folder:
        weight = torch.randn(3, 4)
        Store(folder.checkpoints).save(Snapshot(7, {"model": {"in": weight, "out": weight}}, {}))
    export.export(tmp_path / "run", tmp_path / "x.safetensors")
    found = load_file(tmp_path / "x.safetensors")
    assert found.keys() == {"in", "out"}
    assert torch.equal(found["in"], weight)
    assert torch.equal(found["out"], weight)
