#!/usr/bin/env bash
# Collects the licence texts of all crates that are compiled into muster: one folder per crate, and a table of them.
# Usage: licences.sh DIRECTORY. Fails for a crate that has no text: add one at deploy/image/texts/NAME.
set -euo pipefail

out=$1
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
mkdir -p "$out"
cp LICENSE "$out/LICENSE"

texts() { # directory of a crate
    find "$1" -maxdepth 4 -type f \( -iname 'licen[sc]e*' -o -iname 'copying*' -o -iname 'copyright*' -o -iname 'notice*' \
        -o -iname 'unlicense*' \) ! -name '*.rs' ! -name '*.py' ! -name '*.sh' 2>/dev/null
}
source_of() { # name, version
    local dir
    for dir in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$1-$2" vendor/"$1-$2" vendor/"$1"; do
        [ -d "$dir" ] && echo "$dir" && return
    done
    echo "error: the source of $1 $2 is neither in cargo's registry nor in vendor" >&2
    return 1
}

table=$(cargo tree --locked --quiet -p muster -e normal --prefix none --format '{p}|{l}|{r}' |
    sed 's/ (proc-macro)//; s/ (\*)//' | grep -v '^muster' | sort -u)
[ -n "$table" ]
sed 's/|/\t/g' <<<"$table" >"$out/crates.tsv"

missing=0
while IFS='|' read -r package licence repository; do
    read -r name version <<<"$package"
    version=${version#v}
    found=$(texts "$(source_of "$name" "$version")")
    if [ -z "$found" ] && [ -e "$here/texts/$name" ]; then
        found=$here/texts/$name
    fi
    if [ -z "$found" ] && [ -n "$repository" ]; then
        # Crates of one repository share the file at its top; not all of them pack it.
        while IFS='|' read -r sibling _ _; do
            read -r other its <<<"$sibling"
            found=$(texts "$(source_of "$other" "${its#v}")")
            [ -z "$found" ] || break
        done < <(grep -F "|${repository%/tree/*}" <<<"$table" || true)
    fi
    # This text names no holder: it is the same for all.
    if [ -z "$found" ] && [ "$licence" = Apache-2.0 ]; then
        found=LICENSE
    fi
    if [ -z "$found" ]; then
        echo "error: no licence text for $name $version: add deploy/image/texts/$name" >&2
        missing=1
        continue
    fi
    mkdir -p "$out/crates/$name-$version"
    # Names may repeat in folders of bundled C code: the last part of the path tells them apart.
    while read -r file; do
        to=$out/crates/$name-$version/$(basename "$file")
        [ ! -e "$to" ] || to=$out/crates/$name-$version/$(basename "$(dirname "$file")").$(basename "$file")
        cp "$file" "$to"
    done <<<"$found"
done <<<"$table"

# Rust's own library is in the binary too; LICENSE is one of its two licences.
printf 'std of %s\tMIT OR Apache-2.0\thttps://github.com/rust-lang/rust\n' "$(rustc --version)" >>"$out/crates.tsv"
find "$out" -type d -exec chmod 755 {} + -o -type f -exec chmod 644 {} +
exit $missing
