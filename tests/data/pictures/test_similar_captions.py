from fullstride.data.pictures.similar_captions import SimilarCaptions, same

CAPTIONS = ["A red dog on the mat", "a red cat", "the dog, barking", "a blue cat", "on the a"]


def test_those_that_share_the_most_and_rarest_words_come_first():
    similar = SimilarCaptions(CAPTIONS)
    for turn in range(5):
        assert set(similar.ranked(["a red dog"], turn).tolist()) == {0, 1, 2}
        assert similar.ranked(["a red dog"], turn)[0] == 0
        assert similar.ranked(["barking cat"], turn)[0] == 2  # one caption has barking, two have cat


def test_equal_ones_come_in_the_order_of_the_turn():
    similar = SimilarCaptions([f"flag {i}" for i in range(50)])
    orders = [tuple(similar.ranked(["flag"], turn).tolist()) for turn in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == list(range(50))


def test_stop_words_make_nothing_similar():
    assert SimilarCaptions(CAPTIONS).ranked(["on the a"]).tolist() == []


def test_content_words_are_those_that_captions_have_the_rarest_first():
    assert SimilarCaptions(CAPTIONS).content_words(["the Red barking zebra"]) == ["barking", "red"]


def test_a_word_that_very_many_have_costs_no_more(monkeypatch):
    similar = SimilarCaptions([f"dog number{i}" for i in range(5000)])
    found = similar.ranked(["dog"], 4500)
    assert len(found) == len(set(found.tolist())) == 1024
    assert {4500, 4999, 0} <= set(found.tolist())


def test_case_and_spaces_make_no_other_caption():
    assert same(" A  Red\tdog ") == same("a red DOG") != same("a red dog.")
