"""English words by their letters: the longest rule that fits, in lower-case ARPAbet.

    letters_to_phonemes("lighter") == ("l", "ay1", "t", "er0")

For words that no lexicon knows, where no synthesiser is installed: understandable, and often as a dictionary has them.
"""

import re

# what precedes < the letters > what follows, then their sounds, "-" for none. V is a vowel, C a consonant, B one of the
# consonants that let the vowel before them be long, E an ending that leaves the word's silent e unsaid.
_RULES = """
^<a>$ ax            <a> ae              <augh> ao           <air> eh r          <are>$ eh r         <ar>C aa r
<ar>$ aa r          <arr> ae r          w<ar>C ao r         w<ar>$ ao r         w<a>C aa            qu<a>C aa
<ai> ey             <ay> ey             <au> ao             <aw> ao             <al>k ao            <al>m aa
<all> ao l          VC+<age>$ ih jh     C<al>$ ax l         C<ally>$ ax l iy    C<able>$ ax b ax l  <a>BE ey
<a>ste ey           <a>nge ey           <a>tion ey          <a>c?tious ey       C<a>$ ax            ^C+<a>B[iou] ey
^<a>(bout|gain|go|way|lo|part|side) ax  V.*C<ant> ax n t    V.*C<ance> ax n s   V.*C<ar>$ er        V.*C<ary>$ eh r iy
^<al>(so|ready|ways|most|though) ao l   V.*C<an>$ ax n      C<a>ble ey          ^<a>ny eh           m<a>ny eh
<b> b               <bb> b              m<b>$ -             <bt>$ t
<c> k               <c>[eiy] s          <cc> k              <cc>[eiy] k s       <ck> k              <ch> ch
<ch>[rl] k          <ch>(em|oru|aos|ar) k                   <ci>(al|an|ou) sh   <ce>an sh           <tch> ch
<d> d               <dd> d              <dg>[ei] jh         <dge>$ jh
<e> eh              <ee> iy             <eigh> ey           c<ei> iy            <ei> ey             <ear>C er
<ear> ih r          <ea> iy             <ea>(d|th|lth|sur|ther|dy|vy)$ eh       <ea>lth eh          <eer> ih r
<eu> uw             <ew> uw             [fvp]<ew> y uw      <ey>$ iy            <ey> ey             ^C+<ere>$ ih r
<er>C er            <er>$ er            [td]<ed>$ ih d      VC*[pkfsxc]<ed>$ t  VC*(sh|ch)<ed>$ t   VC*[^td]<ed>$ d
[sxzcg]<es>$ ih z   [cs]h<es>$ ih z     V.*[ptkf]<es>$ s    V.*[^ptkfsxzcgh]<es>$ z
V.*<e>(ly|less|ness|ment|ful)$ -        C+o<es>$ z          <e>ntion eh
<e>BE iy            V.*C<el>$ ax l      V.*C<en>$ ax n      V.*C<ent>(s|ly)?$ ax n t    ^C+<e>$ iy
V.*C<ence> ax n s
V.*<e>$ -           ^[bdrp]r?<e>CV ih   V.*[sc]<e>s$ ih     ^(th)?<ere>$ eh r   V.*C<ens> ax n z    ^<ex>[aeiou] ih g z
^<ex>C ih k s        <e>(o|a)$ iy        V.*C<et>$ ax t      V.*[^td]<eds>$ d z  V.*C<ery>$ er iy    ^<ev>er eh v
<f> f               <ff> f
<g> g               <gg> g              <gh> g              V<gh> -             ^<gn> n             <gn>$ n
<gu>[ei] g          .<g>[ei] jh         .<g>y jh            .<ge>$ jh           <g>(ir|iv|et) g     <g>en(e|t) jh
<h> -               <h>V hh             ^<h>(onest|our) -
<i> ih              <igh> ay            <i>(nd|ld)s?$ ay    <ign>$ ay n         ^C+<ie>$ ay         ^C+<ied>$ ay d
^C+<ies>$ ay z      <ie> iy             [st]<ion> ax n      <ious> iy ax s      [tc]<ious> ax s     [tc]<ia> ax
<ique>$ iy k        <ing> ih ng         <ir>C er            <ir>$ er            <ire> ay er         VC+<ive>$ ih v
VC+<ine>$ ih n      VC+<ite>$ ih t      VC+<ice>$ ih s      <i>BE ay            ^C+<i>$ ay          C<i>$ iy
<i>[aou] iy         ^C+<i>[ae] ay       <i>fy ih            <iz>e ay z          <ise>$ ay z         VC+<i>ble ax
^C*<i>[dnlv]e ay    <i>tion ih
<j> jh
<k> k               <kk> k              ^<kn> n
<l> l               <ll> l              C<le>$ ax l         C<les>$ ax l z      C<led>$ ax l d
<m> m               <mm> m              <mn>$ m
<n> n               <nn> n              <ng> ng             <ng>[lr] ng g       <n>[kx] ng          <nge> n jh
<ng>[aeiou] ng g    <ng>(ed|er|ing)s?$ ng                   <nger>$ n jh er
<o> aa              <ought> ao t        <ough>$ ow          <ough> ah f         ^thr<ough> uw       <ould> uh d
<oor> ao r          <ook> uh k          ^[gwh]<ood> uh d    <oo> uw             <oi> oy             <oy> oy
VC+<our>$ er        <our>C ao r         <our>$ ao r         C<ous>$ ax s        <ou> aw             <ow> ow
^[nhwcbv]<ow> aw    ^all<ow> aw         <ow>[nld] aw        [nksrlg]<own> ow n  <ower> aw er        <oa> ow
<oe>$ ow            <ore> ao r          <or> ao r           V.*[td]<or>$ er     w<or>C er           <o>(st|ld|lt)s? ow
c<ome>$ ah m        s<ome> ah m         <one>$ ow n         ^<one>$ w ah n      d<one>$ ah n        ^n<one>$ ah n
<o>ther ah          <o>(ve|ver|ney)$ ah                    <over> ow v er      s<on>$ ah n         ^w<on>$ ah n
^t<on>$ ah n        <o>BE ow            V.*C<on>$ ax n      ^[dt]<o>$ uw        ^wh<o> uw           <o>$ ow
<o>tion ow          <o>[aeu] ow         ^C*<o>B[iaou] ow    ^c<o>[mnl] ax       ^<of>$ ah v         <only>$ ow n l iy
<ology>$ aa l ax jh iy                  V.*C<ory>$ ao r iy  <o>ll aa            ^m<o>st ow          b<o>th ow
<p> p               <pp> p              <ph> f              ^<ps> s             ^<pn> n
<q> k               <qu> k w            <que>$ k            <ques>$ k s
<r> r               <rr> r              <rh> r
<s> s               <ss> s              <sh> sh             <sch>o s k          <ssi>on sh
V<s>(ion|ual|ure$) zh                   V<s>ed$ z
C<s>(ion|ure) sh    <ssure> sh er       <sc>[eiy] s         [aeiouybdglmnrvw]<s>$ z                 [uis]<s>$ s
V<s>(e|es|ed|er|ing|y)$ z               <sm>$ z ax m        ^(i|ha|wa|hi)<s>$ z V<se>$ z            ^[^s]*[uo]u<se>$ s
<t> t               <tt> t              <th> th             ^<th>(e|is|at|en|ey|em|ese|ose|ough|us|an|eir|ere)$ dh
V<th>(er|ers|ing|e|ed)$ dh              <t>i(on|a|ous|ent) sh                   s<ti>on ch          <tu>re ch
<ture>$ ch er       <tures>$ ch er z    <tu>al ch uw        s<t>(en|le)$ -      <tion> sh ax n      <tious>$ sh ax s
<u> ah              <ur>C er            <ur>$ er            <ure> y uh r        <urr> er            <ui> uw
g<ui> ih            C<ue>$ uw           <uy> ay             ^[bpf]<u>(ll|sh) uh V.*C<um>$ ax m      V.*C<us>$ ax s
[rljsd]<u>BV uw     <u>BV y uw          ^<un>i y uw n       C<u>$ uw            V.*C<ul>$ ax l      ^<us>[eiua] y uw z
^p<u>t$ uh          q<ue>(s|n) eh
<v> v               <vv> v
<w> -               <w>V w              ^<wr> r             <wh> w              <who>$ hh uw        <who>[sm] hh uw
<x> k s             ^<x> z
<y> ih              ^<y>V y             V<y>V y             ^C+<y>$ ay          <y>$ iy             f<y>$ ay
<y>BE ay            <y>z ay             ^<you>$ y uw        ^<your>s?$ y ao r   <yp>e ay p
<z> z               <zz> z
"""
_CLASSES = {"V": "[aeiouy]", "C": "[^aeiouy]", "B": "[bcdfgklmnpstvz]", "E": "(?:e|ed|es|er|ers|ing|ely|eless)$"}
_NAMES = {  # of letters that stand alone; A is the article, I the pronoun
    **dict(a="ax0", b="b iy1", c="s iy1", d="d iy1", e="iy1", f="eh1 f", g="jh iy1", h="ey1 ch", i="ay1"),
    **dict(j="jh ey1", k="k ey1", l="eh1 l", m="eh1 m", n="eh1 n", o="ow1", p="p iy1", q="k y uw1", r="aa1 r"),
    **dict(s="eh1 s", t="t iy1", u="y uw1", v="v iy1", w="d ah1 b ax0 l y uw0", x="eh1 k s", y="w ay1", z="z iy1"),
}
_COMMON_WORDS = """
the: dh ax0; are: aa1 r; what: w ah1 t; was: w ah1 z; from: f r ah1 m; does: d ah1 z; have: hh ae1 v;
there: dh eh1 r; where: w eh1 r; their: dh eh1 r; they: dh ey1; this: dh ih1 s; once: w ah1 n s; our: aw1 er0;
were: w er1; been: b ih1 n; said: s eh1 d; says: s eh1 z; two: t uw1; who: hh uw1; people: p iy1 p ax0 l;
because: b ih0 k ao1 z; friend: f r eh1 n d; eye: ay1; great: g r ey1 t; give: g ih1 v; live: l ih1 v;
with: w ih1 dh; own: ow1 n; woman: w uh1 m ax0 n; women: w ih1 m ax0 n; water: w ao1 t er0; father: f aa1 dh er0;
whole: hh ow1 l; heart: hh aa1 r t; laugh: l ae1 f; enough: ih0 n ah1 f; again: ax0 g eh1 n; money: m ah1 n iy0;
month: m ah1 n th; nothing: n ah1 th ih0 ng; something: s ah1 m th ih0 ng; and: ae1 n d; an: ae1 n; as: ae1 z;
put: p uh1 t; she: sh iy1; me: m iy1
"""  # they follow no rule
_VOWEL_SOUND = re.compile(r"[aeiou][a-z]$")
_BEFORE = re.compile(r"(?:[tsc]ion|ic|ics|[tc]ious|[tc]ian|[tc]ial)(?:s|al|ally|ly|ed|ing)?$")  # stress precedes these
_LIGHT = re.compile(r"^(?:a[bcdfglpt]|be|com|con|de|dis|en|ex|im|in|pre|pro|re|sub|sup|un)")  # and follows these


class _Rule:
    def __init__(self, before: str, letters: str, after: str, sounds: str) -> None:
        for name, members in _CLASSES.items():
            before, after = before.replace(name, members), after.replace(name, members)
        self.letters, self.sounds = letters, tuple(sounds.split()) if sounds != "-" else ()
        self._before, self._after = re.compile(f"(?:{before})$"), re.compile(after)
        self.exactness = len(letters), len(before) + len(after)  # of two rules for as many letters, the narrower one

    def fits(self, word: str, place: int) -> bool:
        end = place + len(self.letters)
        return (
            word.startswith(self.letters, place)
            and self._after.match(word[end:]) is not None
            and self._before.search(word[:place]) is not None
        )


def _read_rules() -> dict[str, list[_Rule]]:
    by_letter: dict[str, list[_Rule]] = {}
    for found in re.finditer(r"(\S*)<([a-z]+)>(\S*) ((?:-|[a-z]{1,2})(?: [a-z]{1,2}(?![a-z<(\[^]))*)(?=\s|$)", _RULES):
        by_letter.setdefault(found[2][0], []).append(_Rule(found[1], found[2], found[3], found[4]))
    return {letter: sorted(rules, key=lambda rule: rule.exactness, reverse=True) for letter, rules in by_letter.items()}


_by_letter = _read_rules()
_common = dict(entry.strip().split(": ") for entry in _COMMON_WORDS.split(";"))


def letters_to_phonemes(word: str) -> tuple[str, ...]:
    """The word's phonemes, every vowel with its stress. What is no letter is passed over."""
    word = "".join(letter for letter in word.lower() if "a" <= letter <= "z")
    known = _NAMES.get(word) or _common.get(word)
    if known:
        return tuple(known.split())
    sounds: list[str] = []
    place = 0
    while place < len(word):
        rule = next(rule for rule in _by_letter[word[place]] if rule.fits(word, place))
        sounds += rule.sounds
        place += len(rule.letters)
    if not any(map(_VOWEL_SOUND.match, sounds)):  # tv, brr: no word, but its letters
        return tuple(sound for letter in word for sound in _NAMES[letter].split())
    return _stressed(word, sounds)


def _stressed(word: str, sounds: list[str]) -> tuple[str, ...]:
    vowels = [place for place, sound in enumerate(sounds) if _VOWEL_SOUND.match(sound)]
    full = [place for place in vowels if sounds[place] != "ax"] or vowels
    ending = _BEFORE.search(word)
    if ending and len(vowels) > 1:
        behind = len(re.findall(r"io|ia|[aeiouy]+", ending[0]))  # vowels that the ending itself has
        stressed = vowels[max(0, len(vowels) - behind - 1)]
    else:
        stressed = full[1] if len(full) > 1 and _LIGHT.match(word) and full[1] < len(sounds) - 1 else full[0]
    return tuple(
        sound + ("1" if place == stressed else "0") if place in vowels else sound for place, sound in enumerate(sounds)
    )
