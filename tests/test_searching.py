"""Pictures of a folder against a text: which are found, in which order, and which cannot be read."""

import numpy as np
import pytest
import torch

from fullstride import searching
from fullstride.models import clip
from fullstride.recipes.clip import files
from fullstride.train import evaluation
from fullstride.train.export import export_as_others

from .data.pictures.making import encoded, plain
from .recipes.drawn import SCENES, draw
from .recipes.tiny_clip import tiny_run

TEXT = SCENES.caption(3)


def load(run):
    return files.load(run, lambda: evaluation.find(run).tensors["model"])


@pytest.fixture(scope="module")
def trained():
    return load(tiny_run())


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("search"), 40)  # more than are encoded at a time


def test_pictures_are_those_of_all_folders_by_name(tmp_path):
    for name in ("b.PNG", "a.jpg", "inner/c.webp", "notes.txt", "inner/deeper/d.gif"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.png").mkdir()
    names = [path.relative_to(tmp_path).as_posix() for path in searching.pictures_in(tmp_path)]
    assert names == ["a.jpg", "b.PNG", "inner/c.webp", "inner/deeper/d.gif"]


def test_a_folder_without_pictures_is_refused_in_one_line(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"expected pictures \(\.jpg, .*\), got none$"):
        searching.pictures_in(tmp_path)


def test_pictures_become_vectors_of_length_1_and_progress_is_told(trained, paths):
    told: list[int] = []
    found = searching.index(trained, paths, told.append)
    assert list(found.paths) == paths
    assert found.skipped == []
    torch.testing.assert_close(found.vectors.norm(dim=1), torch.ones(40))
    assert told == [32, 40]


def test_a_vector_is_that_of_the_picture_alone_as_evaluations_see_it(trained, paths):
    from PIL import Image

    pixels = np.array(Image.fromarray(SCENES.picture(35)).resize((16, 16), Image.Resampling.BICUBIC))
    with torch.no_grad():
        expected = clip.encode_images(trained.model, trained.scaling(pixels[None]))
    torch.testing.assert_close(searching.index(trained, paths).vectors[35:36], expected)


def test_what_fits_best_comes_first_by_the_cosine(trained, paths):
    pictures = searching.index(trained, paths)
    found = searching.search(trained, pictures, TEXT, 40)
    with torch.no_grad():
        wanted = clip.encode_texts(trained.model, trained.captions.batch([TEXT], trained.context))[0]
    expected = {path: float(vector @ wanted) for path, vector in zip(paths, pictures.vectors, strict=True)}
    assert [one.path for one in found] == sorted(paths, key=lambda path: -expected[path])
    assert {one.path: one.similarity for one in found} == pytest.approx(expected, abs=1e-6)
    assert all(-1 <= one.similarity <= 1 for one in found)


@pytest.mark.parametrize(("most", "count"), [(1, 1), (3, 3), (99, 40)])
def test_no_more_are_found_than_there_are_or_were_asked_for(trained, paths, most, count):
    assert len(searching.search(trained, searching.index(trained, paths), TEXT, most)) == count


@pytest.mark.parametrize("text", ["", " \t\n"])
def test_an_empty_text_is_refused_in_one_line(trained, paths, text):
    with pytest.raises(ValueError, match=r"^expected words to look for, got an empty text$"):
        searching.search(trained, searching.index(trained, paths[:2]), text, 1)


def test_what_cannot_be_read_is_named_and_the_rest_is_searched(trained, tmp_path):
    (good,) = draw(tmp_path, 1)
    (tmp_path / "broken.png").write_bytes(good.read_bytes()[:-40])
    (tmp_path / "tiny.png").write_bytes(encoded(plain("red", width=1, height=1)))
    (tmp_path / "wide.png").write_bytes(encoded(plain(0, "1", 10_000, 10_000)))  # of which Pillow would warn
    pictures = searching.index(trained, [*searching.pictures_in(tmp_path), tmp_path / "gone.png"])
    assert list(pictures.paths) == [good]
    broken, tiny, wide, gone = pictures.skipped
    assert broken.startswith(f"{tmp_path / 'broken.png'}: ")
    assert tiny == f"{tmp_path / 'tiny.png'}: expected at least 8 pixels a side, got 1 x 1"
    assert wide == f"{tmp_path / 'wide.png'}: expected at most 64,000,000 pixels, got 10,000 x 10,000"
    assert gone == f"{tmp_path / 'gone.png'}: No such file or directory"


def test_nothing_that_can_be_read_is_refused_in_one_line(trained, tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.jpg").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"expected pictures that can be read, got none of 3: .*0\.jpg: ") as caught:
        searching.index(trained, searching.pictures_in(tmp_path))
    assert "\n" not in str(caught.value)


# ---- what lies in its folder -----------------------------------------------------------------------------------------


def test_an_exported_folder_has_the_model_of_its_run(trained, paths, tmp_path):
    export_as_others(tiny_run(), tmp_path / "clip")
    exported = files.load(tmp_path / "clip", pytest.fail)
    assert (exported.image, exported.context, exported.scaling) == (16, 40, trained.scaling)
    theirs, ours = (searching.search(x, searching.index(x, paths), TEXT, 40) for x in (exported, trained))
    assert theirs == ours


def test_an_exported_folder_without_its_tokenizer_is_one_line(tmp_path):
    export_as_others(tiny_run(), tmp_path / "clip")
    for name in ("characters.json", "tokenizer.json"):
        (tmp_path / "clip" / name).unlink(missing_ok=True)
    with pytest.raises(ValueError, match=r"clip: expected a tokenizer with the model \(tokenizer\.json\), got none"):
        files.load(tmp_path / "clip", pytest.fail)


def test_a_folder_that_is_neither_is_one_line(tmp_path):
    with pytest.raises(ValueError, match="expected the folder of a run of recipe clip, or of a CLIP of Hugging Face"):
        files.load(tmp_path, pytest.fail)
