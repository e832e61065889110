import hashlib
import io
import json
import shutil
import subprocess
import tarfile

import pytest

from fullstride.data import emoji_source, sources

PNG, WEBP = b"\x89PNG drawn by ", b"RIFF....WEBP drawn by fluent"


def entry(name, unified, order, category="Objects", short_names=("thing",)):
    return {
        "name": name, "unified": unified, "sort_order": order, "category": category, "subcategory": "some",
        "short_name": short_names[0], "short_names": list(short_names),
    }  # fmt: skip


TABLE = [
    entry("WHITE UP POINTING INDEX", "261D-FE0F", 3, "People & Body", ["point_up"]),
    entry("AUBERGINE", "1F346", 2, "Food & Drink", ["eggplant"]),
    entry("HARP", "1FA89", 1, "Objects", ["harp"]),  # which fluent has not
    entry("EMOJI MODIFIER FITZPATRICK TYPE-3", "1F3FC", 4, "Component", ["skin-tone-3"]),
    entry("FAMILY: MAN, BOY", "1F468-200D-1F466", 5, "People & Body", ["man-boy"]),
    entry("Bouvet Island Flag", "1F1E7-1F1FB", 6, "Flags", ["flag-bv"]),
]


def packed(members):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, data in members.items():
            header = tarfile.TarInfo(f"package/{name}")
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
    return content.getvalue()


@pytest.fixture
def npm(monkeypatch):
    """Packages like the real ones with a few emoji, behind an npm that notes what it is asked for."""
    archives = {}
    for vendor in ("google", "twitter"):
        members = {"emoji.json": json.dumps(TABLE).encode(), f"img/{vendor}/sheets/64.png": b"all of them"}
        for row in TABLE:
            members[f"img/{vendor}/64/{row['unified'].lower()}.png"] = PNG + vendor.encode()
        members[f"img/{vendor}/64/261d-1f3fb.png"] = b"with a skin tone"
        archives[vendor] = packed(members)
    archives["fluent"] = packed({f"assets/{name}.webp": WEBP for name in ("261d", "1f346", "1f3fc")})
    packages = {
        vendor: (package, hashlib.sha256(archives[vendor]).hexdigest())
        for vendor, (package, _) in emoji_source.PACKAGES.items()
    }
    monkeypatch.setattr(emoji_source, "PACKAGES", packages)
    calls = []

    def run(command, cwd, **_):
        calls.append(command[-1])
        (vendor,) = (vendor for vendor, (package, _) in packages.items() if package == command[-1])
        with open(f"{cwd}/some.tgz", "wb") as file:
            file.write(archives[vendor])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_each_vendor_becomes_a_tar_file_in_the_order_of_unicode(npm, monkeypatch, tmp_path):
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in emoji_source.make().items()}
    monkeypatch.setattr(emoji_source, "FILES", digests)
    said = sources.fetch("emoji", tmp_path / "new")
    assert said.endswith(f"written to {tmp_path / 'new'}")
    assert "\n" not in said
    with tarfile.open(tmp_path / "new" / "google.tar") as archive:
        names = ["1fa89.png", "1fa89.json", "1f346.png", "1f346.json", "261d.png", "261d.json"]
        assert archive.getnames() == names
        assert archive.extractfile("261d.png").read() == PNG + b"google"
        about = {"caption": ["aubergine", "eggplant"], "category": "Food & Drink", "subcategory": "some"}
        assert json.load(archive.extractfile("1f346.json")) == about
        assert {member.mtime for member in archive} == {0}
    with tarfile.open(tmp_path / "new" / "fluent.tar") as archive:
        assert archive.getnames() == ["1f346.webp", "1f346.json", "261d.webp", "261d.json"]
    assert "already" in sources.fetch("emoji", tmp_path / "new")
    assert npm == 2 * [package for package, _ in emoji_source.PACKAGES.values()]


def test_another_archive_than_pinned_is_refused_and_nothing_written(npm, monkeypatch, tmp_path):
    package = emoji_source.PACKAGES["twitter"][0]
    monkeypatch.setitem(emoji_source.PACKAGES, "twitter", (package, "0" * 64))
    with pytest.raises(
        ValueError, match=r"^emoji-datasource-twitter@16\.0\.0: expected sha256 0000.*not the one pinned"
    ):
        sources.fetch("emoji", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_other_content_than_pinned_is_refused(npm, tmp_path):
    with pytest.raises(ValueError, match=r"^google\.tar out of emoji-datasource-google@16\.0\.0, .*: expected sha256 "):
        sources.fetch("emoji", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_without_npm_one_line_names_it(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(
        OSError, match=r"^expected npm, which gets emoji-datasource-google@16\.0\.0, and found none"
    ) as e:
        sources.fetch("emoji", tmp_path)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(("name", "short_names", "expected"), [
    ("GRINNING FACE WITH SMILING EYES", ["grin"], ["grinning face with smiling eyes", "grin"]),
    ("PAW PRINTS", ["feet", "paw_prints"], ["paw prints", "feet"]),
    ("MAN: RED HAIR", ["red_haired_man"], ["man with red hair", "red haired man"]),
    ("PERSON: BALD", ["bald_person"], ["bald person"]),
    ("WOMAN: BEARD", ["woman_with_beard"], ["woman with a beard"]),
    ("KISS: WOMAN, MAN", ["woman-kiss-man"], ["kiss, a woman and a man"]),
    ("CLOCK FACE NINE OCLOCK", ["clock9"], ["clock face nine o'clock"]),
    ("MANS SHOE", ["mans_shoe", "shoe"], ["man's shoe"]),
    ("HEAVY BLACK HEART", ["heart"], ["red heart"]),
    ("BLACK TELEPHONE", ["phone"], ["telephone", "phone"]),
    ("BLACK CAT", ["black_cat"], ["black cat"]),
    ("MAN IN TUXEDO", ["person_in_tuxedo"], ["person in tuxedo"]),
    ("PILE OF POO", ["hankey", "poop", "shit"], ["pile of poo", "poop"]),
])  # fmt: skip
def test_names_become_what_people_say(name, short_names, expected):
    assert emoji_source.captions(entry(name, "1F600", 0, short_names=short_names)) == expected


def test_flags_are_those_of_countries():
    flag = entry("Trinidad & Tobago Flag", "1F1F9-1F1F9", 0, "Flags", ["flag-tt"])
    assert emoji_source.captions(flag) == ["flag of Trinidad and Tobago", "Trinidad and Tobago flag"]
    white = entry("WHITE FLAG", "1F3F3", 0, "Flags", ["waving_white_flag"])
    assert emoji_source.captions(white) == ["white flag", "waving white flag"]


def test_every_vendor_has_a_file_and_a_package_with_a_checksum():
    assert set(emoji_source.FILES) == {f"{vendor}.tar" for vendor in emoji_source.VENDORS}
    assert all(len(digest) == 64 for digest in (*emoji_source.FILES.values(), *emoji_source.SHA256.split()))
