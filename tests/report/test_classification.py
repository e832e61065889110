import numpy as np
import pytest

from fullstride.report import drawing
from fullstride.report.classification import confusion, mistakes

from .page_reader import Page

LABELS = np.array([0, 0, 1, 1, 2, 2])
PREDICTIONS = np.array([0, 1, 1, 1, 0, 2])


def test_confusion_counts_what_was_right():
    section = confusion(LABELS, PREDICTIONS)
    assert "4 of 6 samples were classified correctly, 66.7\N{NO-BREAK SPACE}%" in section.text
    percent = "\N{NO-BREAK SPACE}%"
    assert section.tables[0].rows == [
        ("0", "2", f"50.0{percent}", f"50.0{percent}"),
        ("1", "2", f"100.0{percent}", f"66.7{percent}"),
        ("2", "2", f"50.0{percent}", f"100.0{percent}"),
    ]


def test_confusion_names_the_most_frequent_mistakes():
    text = confusion(np.array([4, 4, 4, 9]), np.array([9, 9, 4, 4])).text
    assert text.endswith("The most frequent mistakes: 4 taken for 9 (2 times).")


def test_confusion_matrix_shows_counts_and_names():
    section = confusion(LABELS, PREDICTIONS, names=["cat", "dog", "<ox>"])
    text = Page(drawing.draw(section.figures[0], 1)).text
    assert "<ox>" in text
    assert sorted(part for part in text.split() if part.isdigit()) == ["1", "1", "1", "1", "2"]


def test_class_that_never_came_has_no_share():
    assert confusion(np.array([0]), np.array([0]), names=["a", "b"]).tables[0].rows[1] == ("b", "0", "-", "-")


def test_many_classes_are_a_picture_without_a_table():
    labels = np.arange(1000)
    section = confusion(labels, np.roll(labels, 1))
    assert section.tables == []
    assert len(drawing.draw(section.figures[0], 1)) < 200_000


@pytest.mark.parametrize("shape", [(6, 16), (6, 48), (6, 4, 4), (6, 1, 4, 4), (6, 3, 4, 4)])
def test_mistakes_are_shown_in_every_layout_of_images(shape):
    gallery = mistakes(np.random.default_rng(0).random(shape), LABELS, PREDICTIONS).gallery
    assert [(picture.title, picture.note) for picture in gallery.pictures] == [("1", "is 0"), ("0", "is 2")]
    assert all(picture.pixels.shape == (4, 4, 3) for picture in gallery.pictures)
    assert all(picture.pixels.dtype == np.uint8 for picture in gallery.pictures)


def test_most_confident_mistake_comes_first():
    confidences = np.array([0.1, 0.2, 0.3, 0.4, 0.9, 0.6])
    gallery = mistakes(np.zeros((6, 16)), LABELS, PREDICTIONS, confidences, names=["cat", "dog", "ox"], limit=1).gallery
    assert [(picture.title, picture.note) for picture in gallery.pictures] == [("cat (90 %)", "is ox")]
    assert gallery.caption.startswith("1 of 2 mistakes, the most confident first")


def test_digits_are_ink_on_paper_and_colours_stay():
    one = np.zeros((6, 2, 2))
    one[1, 0, 0] = 7.0
    grey = mistakes(one, LABELS, PREDICTIONS).gallery.pictures[0].pixels
    assert grey[..., 0].tolist() == [[0, 255], [255, 255]]
    colour = np.zeros((6, 3, 2, 2))
    colour[1, 2] = 1.0
    assert mistakes(colour, LABELS, PREDICTIONS).gallery.pictures[0].pixels[0, 0].tolist() == [0, 0, 255]


def test_without_mistakes_it_says_so():
    assert mistakes(np.zeros((6, 16)), LABELS, LABELS).text == "None: all 6 samples were classified correctly."
    assert "6 of 6" in confusion(LABELS, LABELS).text


def test_without_samples_it_says_so():
    nothing = np.zeros(0, np.int64)
    assert confusion(nothing, nothing).text == "There were no samples to evaluate."
    assert mistakes(np.zeros((0, 16)), nothing, nothing).gallery is None


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((6, 16)), LABELS[:5], "as many predictions as labels"),
        (np.zeros((5, 16)), LABELS, "one for each of 6 labels"),
        (np.zeros((6, 15)), LABELS, "square"),
        (np.zeros((6, 2, 4, 4)), LABELS, "got \\(2, 2, 4, 4\\)"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(images, labels, message):
    with pytest.raises(ValueError, match=message):
        mistakes(images, labels, PREDICTIONS)
