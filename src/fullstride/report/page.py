"""report.html: everything about a run in one file that needs nothing else, no network and no script.

What is drawn where stands in the other files; here it becomes one page. All text is escaped here, and nowhere else.
"""

import base64
import html
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from .. import __version__
from ..run_folder.folder import RunFolder
from . import (
    comparison,
    drawing,
    freezing,
    gradients,
    headline,
    learning,
    memory,
    processes,
    resources,
    samples,
    speed,
    style,
)
from . import speech as spoken
from . import surroundings as around
from .run import Run, read
from .section import Figure, Gallery, Recording, Section, Table

GENERATOR = "fullstride report"  # a file of ours may be replaced by a newer one
# No script, no font, no picture but those inside: a browser that honours this asks nobody for anything.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_POLICY_FOR_SOUND = f"{_POLICY}; media-src data:"  # only where there is something to play


def write(run: Path, sections: Sequence[Section] = ()) -> Path:
    """Makes report.html in a run folder, from what is there, and gives its path. `sections`: the task's own."""
    drawing.require_matplotlib()
    folder = RunFolder.read(Path(run))
    return folder.write("report.html", page(read(folder.path), sections, folder.path))


def page(run: Run, sections: Sequence[Section] = (), folder: Path | None = None) -> str:
    """folder: the run's own, where its recordings are; without it there are none in the page."""
    heard = None if folder is None else spoken.recordings_section(run, folder)
    found = [
        learning.section(run), samples.section(run), heard, *sections, comparison.section(run),
        speed.speed_section(run), speed.time_section(run), processes.section(run), gradients.section(run),
        freezing.section(run), memory.section(run), resources.section(run), around.events_section(run),
        around.machine_section(run),
    ]  # fmt: skip
    shown = [section for section in found if section is not None]
    return document(f"{run.recipe}: training report", _header(run), shown, ("Reproduce", partial(_reproduce, run)))


def document(
    title: str, header: str, sections: Sequence[Section], last: tuple[str, Callable[[str], str]] | None = None
) -> str:
    """The page. header: markup. last: the title of a section and what makes its markup, given its id."""
    numbers = iter(range(1, 1_000_000))
    titles = [section.title for section in sections] + ([last[0]] if last else [])
    ids = _ids(titles)
    parts = [_section(section, name, numbers) for section, name in zip(sections, ids, strict=False)]
    parts += [last[1](ids[-1])] if last else []
    policy = _POLICY_FOR_SOUND if any(section.recordings for section in sections) else _POLICY
    links = "\n".join(f'<li><a href="#{name}">{_text(title)}</a></li>' for name, title in zip(ids, titles, strict=True))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="{GENERATOR}">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{_text(title)}</title>
<style>
{_style_sheet()}</style>
</head>
<body>
<a class="skip" href="#{ids[0]}">To the figures</a>
{header}
<nav aria-label="Contents"><ul>
{links}
</ul></nav>
<main>
{"".join(parts)}</main>
<footer>Made by Fullstride {_text(__version__)} on {time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}.</footer>
</body>
</html>
"""


def plain_header(eyebrow: str, title: str, lead: str) -> str:
    return f"""<header>
<p class="eyebrow">{_text(eyebrow)}</p>
<h1>{_text(title)}</h1>
<p class="lead">{_text(lead)}</p>
</header>"""


def _style_sheet() -> str:
    dark = f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {style.css_variables(style.DARK)} }} }}"
    css = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return f":root {{ color-scheme: light dark; {style.css_variables(style.LIGHT)} }}\n{dark}\n{css}"


def _header(run: Run) -> str:
    text, good = headline.status(run)
    tiles = headline.tiles(run)
    entries = "\n".join(
        f'<div><dt>{_text(tile.label)}</dt><dd{_if(len(tile.value) > 9, " class=long")}>{_text(tile.value)}</dd>'
        f'<dd class="note">{_text(tile.note)}</dd></div>'
        for tile in tiles
    )
    columns = len(tiles) if len(tiles) <= 5 else -(-len(tiles) // 2)
    return f"""<header>
<p class="eyebrow">Training report</p>
<h1>{_text(run.recipe)}</h1>
<p class="status {"good" if good else "open"}">{_text(text)}</p>
<p class="lead">{_text(headline.sentence(run))}</p>
{_if(bool(tiles), f'<dl class="tiles" style="--columns: {columns}">{entries}</dl>')}
</header>"""


def _section(section: Section, name: str, numbers: Iterator[int]) -> str:
    paragraphs = "".join(f"<p>{_text(part)}</p>\n" for part in re.split(r"\n\s*\n", section.text.strip()) if part)
    figures = "".join(_figure(figure, next(numbers)) for figure in section.figures)
    tables = "".join(_table(table) for table in section.tables)
    if tables:  # beside a figure if there is place beside one
        tables = f'<div class="tables{_if(len(section.figures) % 2 == 0, " wide")}">\n{tables}</div>\n'
    grid = f'<div class="cards">\n{figures}{tables}</div>\n' if figures or tables else ""
    gallery = _gallery(section.gallery) if section.gallery is not None else ""
    sounds = _recordings(section.recordings, section.recordings_caption) if section.recordings else ""
    return f"""<section id="{name}" aria-labelledby="{name}-title">
<h2 id="{name}-title">{_text(section.title)}</h2>
{paragraphs}{grid}{gallery}{sounds}</section>
"""


def _figure(figure: Figure, number: int) -> str:
    caption = f"<figcaption><b>Figure {number}.</b> {_text(figure.caption)}</figcaption>"
    return f'<figure class="card">{drawing.draw(figure, number)}{caption}</figure>\n'


def _gallery(gallery: Gallery) -> str:
    items = "".join(
        f'<li><img alt="{_text(f"{picture.title}; {picture.note}")}" src="{drawing.encode(picture.pixels)}">'
        f"<b{_if(picture.is_right, ' class=right')}>{_text(picture.title)}</b><span>{_text(picture.note)}</span></li>\n"
        for picture in gallery.pictures
    )
    caption = f"<figcaption>{_text(gallery.caption)}</figcaption>"
    kind = f"gallery{_if(gallery.is_wide, ' wide')}"
    return f'<figure class="card"><ul class="{kind}">\n{items}</ul>{caption}</figure>\n'


def _recordings(recordings: Sequence[Recording], caption: str) -> str:
    """Players of the browser's own, which load nothing before somebody presses a button."""
    items = "".join(
        f'<li><b>{_text(recording.title)}</b><audio controls preload="none" aria-label="{_text(recording.title)}" '
        f'src="data:audio/wav;base64,{base64.b64encode(recording.content).decode()}"></audio>'
        f"<span>{_text(recording.note)}</span></li>\n"
        for recording in recordings
    )
    return (
        f'<figure class="card"><ul class="recordings">\n{items}</ul>'
        f"{_if(bool(caption), f'<figcaption>{_text(caption)}</figcaption>')}</figure>\n"
    )


def _table(table: Table) -> str:
    heads = "".join(f'<th scope="col"{_align(table, i)}>{_text(name)}</th>' for i, name in enumerate(table.columns))
    rows = "".join(_row(table, k) for k in range(len(table.rows)))
    kinds = {"facts": not table.columns, "coloured": bool(table.colours), "verbatim": table.keeps_lines}
    names = " ".join(name for name, is_one in kinds.items() if is_one)
    kind = _if(bool(names), f' class="{names}"')
    head = f"<thead><tr>{heads}</tr></thead>" if table.columns else ""
    content = (
        f'<div class="scroll"><table{kind}><caption>{_text(table.caption)}</caption>{head}'
        f"<tbody>{rows}</tbody></table></div>"
    )
    if table.fold:
        return f'<details class="card"><summary>{_text(table.fold)}</summary>{content}</details>\n'
    return f'<div class="card">{content}</div>\n'


def _align(table: Table, column: int) -> str:
    return _if(bool(table.columns) and column >= table.num_text_columns, ' class="number"')


def _row(table: Table, number: int) -> str:
    first, *rest = table.rows[number]
    patch = ""
    if number < len(table.colours):
        patch = f'<span class="patch" style="background: var(--{table.colours[number]})"></span>'
    total = _if(bool(table.colours) and number >= len(table.colours), ' class="total"')
    cells = "".join(f"<td{_align(table, i)}>{_text(x)}</td>" for i, x in enumerate(rest, 1))
    return f'<tr{total}><th scope="row">{patch}{_text(first)}</th>{cells}</tr>\n'


def _reproduce(run: Run, name: str) -> str:
    data = base64.b64encode(run.config_yaml.encode()).decode()
    return f"""<section id="{name}" aria-labelledby="{name}-title">
<h2 id="{name}-title">Reproduce</h2>
<p>With <a download="config.yaml" href="data:text/plain;base64,{data}">config.yaml</a>,
the whole configuration of this run, which stands below:</p>
<pre><code>fullstride train --config config.yaml</code></pre>
<p>Other machines, threads and versions round differently.</p>
<pre tabindex="0" role="region" aria-label="config.yaml"><code>{_text(run.config_yaml)}</code></pre>
</section>
"""


def _ids(titles: Sequence[str]) -> list[str]:
    """Readable, valid and different."""
    names: list[str] = []
    for title in titles:
        name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"
        names.append(name if name not in names else f"{name}-{len(names)}")
    return names


def _text(text: str) -> str:
    return html.escape(text)


def _if(condition: bool, text: str) -> str:
    return text if condition else ""
