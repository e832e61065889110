"""The completion scripts of bash, zsh and fish."""

from collections.abc import Callable, Iterable

from .completion import FILE, FOLDER, Option, Table


def script(shell: str, table: Table) -> str:
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](table)


# ---- bash and zsh ---------------------------------------------------------------------------------------------------
# Both walk the words of the line in the same way. bash gets lists of words; zsh gets "word:help", which it shows.

_WALK = """\
  local command=${{{words}[{first}]}} recipe= config= argument= word index
  for (( index = {second}; index < {current}; index++ )); do
    word=${{{words}[index]}}
    case $word in
      --config) config=1 ;;
      -*) ;;
      *) [[ -z $argument && ($index -eq {second} || ${{{words}[index-1]}} != -*) ]] && argument=$word ;;
    esac
  done
  recipe=$argument
"""


def _bash(table: Table) -> str:
    commands = " ".join(command.name for command in table.commands)
    lines = [
        "# fullstride completion bash",
        "_fullstride_runs() {  # folders with a config.yaml, here and one below",
        "  local file",
        '  for file in "$cur"*/config.yaml "$cur"*/*/config.yaml; do',
        '    [[ -f $file ]] && COMPREPLY+=("${file%/config.yaml}")',
        "  done",
        "  compopt -o filenames 2>/dev/null",
        "}",
        "_fullstride_files() {  # $1: f for files, d for folders",
        "  local name",
        '  while IFS= read -r name; do COMPREPLY+=("$name"); done < <(compgen "-$1" -- "$cur")',
        "  compopt -o filenames 2>/dev/null",
        "}",
        "_fullstride_fields() {",
        "  case $1 in",
        *(f'    {name}) echo "{_names(options)}" ;;' for name, options in table.fields.items()),
        f'    *) echo "{_names(_all_fields(table))}" ;;',
        "  esac",
        "}",
        "_fullstride() {",
        "  COMPREPLY=()",
        '  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=""',
        "  if (( COMP_CWORD == 1 )); then",
        f'    COMPREPLY=($(compgen -W "{commands} --help --version" -- "$cur")); return',
        "  fi",
        _WALK.format(words="COMP_WORDS", first=1, second=2, current="COMP_CWORD").rstrip(),
        "  case $command:$prev in",
        *_values(table, _bash_value),
        "  esac",
        "  case $command in",
    ]
    for command in table.commands:
        first = f'words="{_join(command.words)}"'
        if command.takes_run:
            first = f"_fullstride_runs; {'_fullstride_files f; ' if command.takes_file else ''}return"
        config, fields = ("$config", " $(_fullstride_fields $recipe)") if command.takes_fields else ("", "")
        lines.append(f"    {command.name})")
        lines.append(f"      if [[ $cur != -* && -z $argument{config} ]]; then {first}")
        lines.append(f'      else words="{_names(command.options)}{fields}"; fi ;;')
    lines += ["  esac", '  COMPREPLY=($(compgen -W "$words" -- "$cur"))', "}", "complete -F _fullstride fullstride"]
    return "\n".join(lines)


def _bash_value(option: Option) -> str:
    if option.kind:
        return f"_fullstride_files {'d' if option.kind == FOLDER else 'f'}; "
    return f'COMPREPLY=($(compgen -W "{_join(option.words)}" -- "$cur")); ' if option.words else ""


def _zsh(table: Table) -> str:
    lines = [
        "#compdef fullstride",
        "# fullstride completion zsh",
        "_fullstride_runs() {  # folders with a config.yaml, here and one below",
        "  local -a folders",
        "  folders=(${PREFIX}*/config.yaml(N:h) ${PREFIX}*/*/config.yaml(N:h))",
        "  compadd -a folders",
        "}",
        "_fullstride_fields() {",
        "  local -a fields",
        "  case $1 in",
        *(f"    {name}) fields=({_described(options)}) ;;" for name, options in table.fields.items()),
        f"    *) fields=({_described(_all_fields(table))}) ;;",
        "  esac",
        "  _describe -o field fields",
        "}",
        "_fullstride() {",
        "  local -a found",
        "  if (( CURRENT == 2 )); then",
        f"    found=({' '.join(_quoted(f'{c.name}:{_colons(c.help)}') for c in table.commands)})",
        "    _describe command found; return",
        "  fi",
        _WALK.format(words="words", first=2, second=3, current="CURRENT").rstrip(),
        "  local current=${words[CURRENT]}",
        "  case $command:${words[CURRENT-1]} in",
        *_values(table, _zsh_value),
        "  esac",
        "  case $command in",
    ]
    for command in table.commands:
        lines.append(f"    {command.name})")
        first = f"compadd -- {_join(command.words)}" if command.words else "_message 'no argument'"
        if command.takes_run:
            first = "_fullstride_runs; _files" if command.takes_file else "_fullstride_runs"
        config = "$config" if command.takes_fields else ""
        lines.append(f"      if [[ $current != -* && -z $argument{config} ]]; then {first}; return; fi")
        lines.append(f"      found=({_described(command.options)}); _describe -o option found")
        lines.append("      _fullstride_fields $recipe ;;" if command.takes_fields else "      ;;")
    lines += ["  esac", "}", "(( $+functions[compdef] )) && compdef _fullstride fullstride"]
    return "\n".join(lines)


def _zsh_value(option: Option) -> str:
    if option.kind:
        return "_files -/; " if option.kind == FOLDER else "_files; "
    return f"compadd -- {_join(option.words)}; " if option.words else "_message value; "


def _values(table: Table, action: Callable[[Option], str]) -> Iterable[str]:
    """What may stand after an option that takes a value."""
    for command in table.commands:
        for option in [*command.options, *(_all_fields(table) if command.takes_fields else ())]:
            if not option.is_flag:
                yield f"    {command.name}:{option.name}) {action(option)}return ;;"


# ---- fish -----------------------------------------------------------------------------------------------------------


def _fish(table: Table) -> str:
    lines = [
        "# fullstride completion fish",
        "function __fullstride_at  # the command, and whether its argument is given: 0 or 1",
        "  set -l words (commandline -opc)",
        '  test (count $words) -ge 2; and test "$words[2]" = $argv[1]; or return 1',
        "  test (count $argv) -eq 1; and return 0",
        '  set -l given 0; test (count $words) -ge 3; and not string match -q -- "-*" $words[3]; and set given 1',
        "  contains -- --config $words; and set given 1",
        "  test $given -eq $argv[2]",
        "end",
        "function __fullstride_recipe  # the recipe of the line; none: every one, for --config",
        "  set -l words (commandline -opc)",
        '  test "$words[2]" = $argv[1]; or return 1',
        '  contains -- "$words[3]" $argv[2..]; and return 0',
        "  contains -- --config $words",
        "end",
        "function __fullstride_runs  # folders with a config.yaml, here and one below",
        "  set -l start (commandline -ct)",
        '  for file in $start*/config.yaml $start*/*/config.yaml; string replace -r "/config.yaml\\$" "" $file; end',
        "end",
        "complete -c fullstride -f",
    ]
    names = " ".join(command.name for command in table.commands)
    nothing = f"not __fish_seen_subcommand_from {names}"
    for command in table.commands:
        lines.append(f"complete -c fullstride -n '{nothing}' -a {command.name} -d {_fish_quoted(command.help)}")
        free = f"__fullstride_at {command.name} 0"
        if command.takes_run:
            files = " -F" if command.takes_file else ""
            lines.append(f"complete -c fullstride -n '{free}'{files} -a '(__fullstride_runs)'")
        elif command.words:
            lines.append(f"complete -c fullstride -n '{free}' -a '{_join(command.words)}'")
        lines += [_fish_option(f"__fullstride_at {command.name}", option) for option in command.options]
        if command.takes_fields:
            for option in _all_fields(table):
                recipes = [recipe for recipe, options in table.fields.items() if option in options]
                lines.append(_fish_option(f"__fullstride_recipe {command.name} {_join(recipes)}", option))
    return "\n".join(lines)


def _fish_option(condition: str, option: Option) -> str:
    line = f"complete -c fullstride -n '{condition}' -l {option.name[2:]}"
    if not option.is_flag:
        line += " -r"
        if option.kind in (FILE, FOLDER):
            line += " -F"
        elif option.words:
            line += f" -a '{_join(option.words)}'"
    return f"{line} -d {_fish_quoted(option.help)}"


# ---- words ----------------------------------------------------------------------------------------------------------


def _all_fields(table: Table) -> list[Option]:
    """Of all recipes, each once: help and values may differ, names do not."""
    return list({option.name: option for options in table.fields.values() for option in options}.values())


def _names(options: Iterable[Option]) -> str:
    return _join(option.name for option in options)


def _join(words: Iterable[str]) -> str:
    return " ".join(words)


def _described(options: Iterable[Option]) -> str:
    return " ".join(_quoted(f"{option.name}:{_colons(option.help)}") for option in options)


def _colons(text: str) -> str:
    """The first colon ends the word in what _describe takes."""
    return " ".join(text.split()).replace(":", "\\:")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish_quoted(text: str) -> str:
    return "'" + " ".join(text.split()).replace("\\", "\\\\").replace("'", "\\'") + "'"
