#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# docs/reference/configuration.md holds every key with its default and mark as the program has them; docs/reference/exit-codes.md every code;
# the man page every command, option, variable and code, without a warning of the formatter. The curves are those of their points.
set -u
kumi=$1/kumi source=$2 failed=0
[ -x "$kumi" ] || exit 77
while IFS= read -r line; do
    case $line in
    '| `'*) grep -qF -- "$line" "$source/docs/reference/configuration.md" || { echo "docs/reference/configuration.md lacks: $line"; failed=1; } ;;
    esac
done < <("$kumi" help config --markdown)
stale=$(comm -13 <("$kumi" help config --markdown | grep '^| `' | sort) <(sed -n '/^## `data`/,$p' "$source/docs/reference/configuration.md" | grep '^| `' | sort))
[ -z "$stale" ] || { echo "docs/reference/configuration.md holds what the program does not have: $stale"; failed=1; }
rows=0
while IFS= read -r line; do
    case $line in
    '| `'* | '#'*) rows=$((rows + 1)); grep -qxF -- "$line" "$source/docs/reference/deepspeed.md" || { echo "docs/reference/deepspeed.md lacks: $line"; failed=1; } ;;
    esac
done < <("$kumi" help deepspeed --markdown)
[ "$rows" -gt 200 ] || { echo "kumi help deepspeed lists $rows keys"; failed=1; }
rows=0
while IFS= read -r line; do
    rows=$((rows + 1)); grep -qxF -- "$line" "$source/docs/reference/precision-policy.md" || { echo "docs/reference/precision-policy.md lacks: $line"; failed=1; }
done < <("$kumi" help precision --markdown)
[ "$rows" -gt 30 ] || { echo "kumi help precision lists $rows ops"; failed=1; }
for code in $(sed -n 's/^    KUMI_E[A-Z]* = -\([0-9]*\).*/\1/p' "$source/include/kumi/status.h"); do
    grep -q "^| $code |" "$source/docs/reference/exit-codes.md" || { echo "docs/reference/exit-codes.md lacks code $code"; failed=1; }
done

page=$(sed 's/\\-/-/g; s/"//g' "$source/docs/kumi.1") # as it reads: "\-" is a dash
lacks() { echo "docs/kumi.1 lacks $*"; failed=1; }
has() { printf '%s\n' "$page" | grep -q -e "$1"; }
commands=$("$kumi" help | sed -n 's/^  kumi \([a-z]*\) .*/\1/p')
[ "$(printf '%s\n' "$commands" | wc -l)" -ge 12 ] || { echo "kumi help lists only: $commands"; failed=1; }
for command in $commands; do
    has "^\.BI* kumi $command\b" || lacks "kumi $command in its synopsis"
    for option in $("$kumi" help "$command" | sed -n 's/^  \(-[-a-z]*\) .*/\1/p'); do
        has "^\.B.* \[*$option\b" || has "^\.BI* kumi $command .*$option\b" || lacks "$option of kumi $command"
    done
done
for code in 0 $(sed -n 's/^    KUMI_E[A-Z]* = -\([0-9]*\).*/\1/p' "$source/include/kumi/status.h"); do
    has "^\.B $code\$" || lacks "code $code"
done
names=$(grep -rhoE '(ku_env|value_of)\("KUMI_[A-Z_]+"\)' "$source/src" | cut -d'"' -f2 | sort -u)
[ "$(printf '%s\n' "$names" | wc -l)" -ge 15 ] || { echo "the source reads only: $names"; failed=1; }
for name in $names; do
    has "\b$name\b" || lacks "the variable $name"
    grep -q "\`$name\`" "$source/docs/reference/environment.md" || { echo "docs/reference/environment.md lacks $name"; failed=1; }
done
for name in $(grep -hoE 'KUMI_[A-Z_]+' "$source/docs/reference/environment.md" "$source/docs/kumi.1" | sort -u); do
    grep -rqw "$name" "$source/src" "$source/include" || { echo "docs name $name, which the source does not have"; failed=1; }
done
version=$("$kumi" --version)
has "^\.TH KUMI 1  $version User" || lacks "the version $version"
warnings=
command -v groff >/dev/null && warnings=$(groff -man -ww -Tutf8 "$source/docs/kumi.1" 2>&1 >/dev/null)
[ -z "$warnings" ] && command -v man >/dev/null && warnings=$(MANROFFSEQ='' man --warnings -l "$source/docs/kumi.1" 2>&1 >/dev/null)
[ -z "$warnings" ] || { echo "docs/kumi.1: $warnings"; failed=1; }

# transcripts of commands that need no data
cd "$source" || exit 1
guide=docs/guide/parallelism.md rows=0
while IFS= read -r line; do
    rows=$((rows + 1))
    wanted=$(awk -v line="    \$ $line" 'found && /^[^ ]/ { exit } found { print substr($0, 5) } $0 == line { found = 1 }' $guide)
    got=$("$kumi" ${line#kumi } 2>&1)
    [ "$got" = "$wanted" ] || { echo "$guide: $line prints:"; diff <(echo "$wanted") <(echo "$got"); failed=1; }
done < <(sed -n 's/^    \$ \(kumi .*\)/\1/p' $guide)
[ $rows = 2 ] || { echo "$guide has $rows transcripts"; failed=1; }
while IFS= read -r line; do
    grep -qxF -- "    $line" $guide || { echo "$guide lacks the layout of examples/layouts.sh: $line"; failed=1; }
done < <(sed -n "s/^train '\(.*\)' \([0-9]*\).*/printf '%-38s %d\\\\n' '\1' \2/p" examples/layouts.sh | bash)

drawn=$(mktemp -d)
trap 'rm -rf "$drawn"' EXIT
bash "$source/tools/pictures.sh" "$drawn" || failed=1
for picture in "$drawn"/*.svg; do
    cmp -s "$picture" "$source/docs/images/${picture##*/}" || { echo "docs/images/${picture##*/} is not what tools/pictures.sh draws"; failed=1; }
done
# pictures of boxes and words, which are the same bytes on every machine
rows=0
while IFS= read -r line; do
    rows=$((rows + 1)) picture=${line##* } command=${line% *}
    # shellcheck disable=SC2086
    "$kumi" ${command#build/kumi } "$drawn/ranks.svg" >/dev/null 2>"$drawn/err" || grep -q cairo "$drawn/err" || { echo "$line: $(cat "$drawn/err")"; failed=1; }
    [ ! -e "$drawn/ranks.svg" ] || cmp -s "$drawn/ranks.svg" "$picture" || { echo "$picture is not what its command draws: $line"; failed=1; }
    [ "$(stat -c %s "$picture")" -lt 60000 ] || { echo "$picture has $(stat -c %s "$picture") bytes"; failed=1; }
done < <(sed -n 's/^    \(build\/kumi plan .* --mesh .*\)/\1/p' docs/*/*.md)
[ $rows -ge 7 ] || { echo "the documents have $rows pictures of --mesh"; failed=1; }
exit $failed
